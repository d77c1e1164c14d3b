(function () {
  var store = document.getElementById("experts");
  if (!store) return;
  var data = JSON.parse(store.textContent), tip = document.getElementById("tip");
  function show(event) {
    var box = event.target.getBoundingClientRect(), rows = data.uses.length, columns = data.uses[0].length;
    var m = Math.min(rows - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * rows)));
    var e = Math.min(columns - 1, Math.max(0, Math.floor((event.clientX - box.left) / box.width * columns)));
    tip.textContent = "layer " + data.layers[m] + ", expert " + e + ": " + data.uses[m][e] + " uses, in memory " +
      data.resident[m][e] + "% of the time, " + data.misses[m][e] + " misses";
    tip.style.display = "block";
    tip.style.left = Math.max(4, Math.min(event.clientX + 12, window.innerWidth - 250)) + "px";
    tip.style.top = Math.max(4, event.clientY - 44) + "px";
  }
  document.querySelectorAll("image.map").forEach(function (map) {
    map.addEventListener("pointermove", show);
    map.addEventListener("pointerdown", show);
    map.addEventListener("pointerleave", function () { tip.style.display = "none"; });
  });
})();
