// What a person would see wrong in the report, as a list of sentences. Runs inside the page.
(function () {
  var width = document.documentElement.clientWidth, wrong = [];
  function name(node) {
    var figure = node.closest("figure"), title = figure && figure.querySelector("h3");
    return (title ? title.textContent + ": " : "") + node.tagName + " " + node.textContent.trim().slice(0, 40);
  }
  function visible(node) { return node.getClientRects().length > 0; }

  if (document.documentElement.scrollWidth > width) wrong.push("the page is " + document.documentElement.scrollWidth + " wide");
  document.querySelectorAll("body *").forEach(function (node) {
    if (!visible(node) || node.closest(".scroll, pre, .definitions")) return;
    var box = node.getBoundingClientRect();
    if (box.width > 0 && (box.right > width + 1 || box.left < -1)) wrong.push("outside the window: " + name(node));
  });

  // Every piece of text, line by line.
  var texts = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    var node = walker.currentNode, parent = node.parentElement;
    if (!node.textContent.trim() || parent.closest("script, style, title, pre, #tip") || !visible(parent)) continue;
    var range = document.createRange();
    range.selectNodeContents(node);
    Array.prototype.forEach.call(range.getClientRects(), function (box) {
      if (box.width > 0) texts.push({ box: box, node: parent });
    });
  }
  texts.sort(function (a, b) { return a.box.top - b.box.top; });
  for (var i = 0; i < texts.length; i++) {
    for (var j = i + 1; j < texts.length && texts[j].box.top < texts[i].box.bottom; j++) {
      var a = texts[i].box, b = texts[j].box;
      var across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      var down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 1 && down > 3) wrong.push("overlap: " + name(texts[i].node) + " and " + name(texts[j].node));
    }
  }

  document.querySelectorAll("svg text").forEach(function (label) {
    if (!visible(label)) return;
    var box = label.getBoundingClientRect(), around = label.closest("svg").getBoundingClientRect();
    if (box.left < around.left - 1 || box.right > around.right + 1 || box.top < around.top - 2 || box.bottom > around.bottom + 2)
      wrong.push("cut: " + name(label));
  });

  document.querySelectorAll("figure").forEach(function (figure) {
    var reason = figure.querySelector(".missing");
    if (reason) {
      if (reason.textContent.trim().length < 10) wrong.push("no reason: " + name(figure));
      return;
    }
    var marks = 0;
    figure.querySelectorAll(".plot svg .mark").forEach(function (mark) {
      if (!visible(mark)) return;
      var box = mark.getBBox();
      if (box.width + box.height > 1) marks += 1;
    });
    if (marks === 0) wrong.push("empty plot: " + name(figure));
  });

  document.querySelectorAll("[fill^='url(']").forEach(function (node) {
    var id = node.getAttribute("fill").slice(5, -1);
    if (!document.getElementById(id)) wrong.push("no pattern " + id);
  });
  return wrong;
})()
