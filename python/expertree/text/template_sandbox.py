"""A jinja2 environment for chat templates, which come inside model files from strangers.

Nothing but plain values is reachable (jinja2's immutable sandbox), and everything a template does is paid from a
`Meter`: loop rounds, macro calls, and the size of every value that is made, passed or compared. No construct multiplies
sizes unpaid, so time and memory are bounded by the budget, whatever the template says.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from string import Formatter
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn, cast

from jinja2 import TemplateError, nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

__all__ = ["LimitExceeded", "Meter", "RefusedMessages", "TemplateEnvironment", "format_time", "metered"]

_CHARS_PER_UNIT = 16
_MAX_NODES = 200_000
_MAX_INT_BITS = 8192
_MAX_WIDTH = 10_000

# Values that know their length, and what looks at no more of one than its type or length. Templates ask these in loops,
# of all messages: paid by size, a long conversation would cost its square. Others that may seem alike do walk: `in`
# compares, `even` of a text formats it, the filter test hashes its name.
_SIZED = (str, bytes, list, tuple, set, frozenset, dict)
_GLANCING_FILTERS = frozenset(("count", "length"))
_GLANCING_TESTS = frozenset(
    (
        *("boolean", "callable", "defined", "escaped", "false", "float", "integer", "iterable", "mapping"),
        *("none", "number", "sameas", "sequence", "string", "true", "undefined"),
    )
)


class LimitExceeded(Exception):
    """The template does too much work or makes too large a value."""


class RefusedMessages(TemplateError):
    """The template called `raise_exception`."""


class Meter:
    """What one rendering may still spend.

    Args:
        work: units; one is a loop round, a value, or 16 characters of text (of the order of 100 ns).
        max_chars: characters of any one value.
        max_nodes: parts of any one value.
    """

    def __init__(self, work: int, max_chars: int, max_nodes: int = _MAX_NODES) -> None:
        self.left = work
        self.max_chars = max_chars
        self.max_nodes = max_nodes

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise LimitExceeded("it does too much work (an endless or huge loop?)")

    def check_chars(self, n_chars: int) -> None:
        """Refuse a value before it is made."""
        if n_chars > self.max_chars:
            raise LimitExceeded(f"it makes a value of more than {self.max_chars} characters")

    def pay_for(self, *values: Any) -> int:
        """Pay for values by their size, everything inside counted as often as it occurs.

        Returns:
            The characters in them.
        """
        n_nodes = n_chars = 0
        stack: list[Any] = list(values)
        while stack:
            value = stack.pop()
            n_nodes += 1
            if isinstance(value, str | bytes):
                n_chars += len(value)
            elif isinstance(value, Mapping):
                stack.extend(value.keys())
                stack.extend(value.values())
            elif isinstance(value, list | tuple | set | frozenset):
                stack.extend(value)
            elif isinstance(value, Namespace):
                stack.append(object.__getattribute__(value, "_Namespace__attrs"))
            elif isinstance(value, int) and value.bit_length() > _MAX_INT_BITS:
                raise LimitExceeded("it makes a number of thousands of digits")
            if n_nodes + len(stack) > self.max_nodes or n_chars > self.max_chars:
                raise LimitExceeded(
                    f"it makes a value of more than {self.max_nodes} parts or {self.max_chars} characters"
                )
        self.spend(n_nodes + n_chars // _CHARS_PER_UNIT)
        return n_chars

    def pay_for_glance(self, *values: Any) -> None:
        """Pay for values of which type and length are looked at: one unit each, where that takes no walk."""
        unknown = [value for value in values if not isinstance(value, _SIZED)]
        self.spend(len(values) - len(unknown))
        self.pay_for(*unknown)


_METER: ContextVar[Meter] = ContextVar("expertree_template_meter")


class metered:
    """`with metered(meter): ...` makes `meter` pay for what templates do in the block."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._token = _METER.set(self._meter)

    def __exit__(self, *_: object) -> None:
        _METER.reset(self._token)


class _GenerationTag(Extension):
    """`{% generation %}...{% endgeneration %}`: marks what a model writes, for training; here just its body."""

    tags = {"generation"}  # noqa: RUF012 - declared by the base class

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The environment that Hugging Face chat templates expect, metered."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_emit,
            extensions=[_GenerationTag, LoopControlExtension],
        )
        for name in ("pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"):
            del self.filters[name]
        self.filters["tojson"] = _to_json
        self.filters = {name: _metered_filter(name, function) for name, function in self.filters.items()}
        self.tests = {name: _metered_test(name, cast(Callable[..., Any], test)) for name, test in self.tests.items()}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception

    def compile_metered(self, source: str) -> Any:
        """A template object. Raises whatever jinja2 raises for a bad source."""
        tree = _MeterTransformer().visit(self.parse(source))
        return self.template_class.from_code(self, self.compile(tree), self.make_globals(None), None)

    # What the transformed template calls.

    def meter_spend(self, units: int) -> bool:
        _METER.get().spend(units)
        return True

    def meter_value(self, value: Any) -> Any:
        _METER.get().pay_for(value)
        return value

    def meter_concat(self, *values: Any) -> str:
        meter = _METER.get()
        meter.check_chars(meter.pay_for(*values))
        text = "".join(map(str, values))
        meter.pay_for(text)
        return text

    # What jinja2's sandbox hands over.

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        if isinstance(obj, MethodType) and obj.__self__ is self:
            return obj(*args)
        meter = _METER.get()
        meter.pay_for(*args, *kwargs.values())
        if isinstance(obj, BuiltinMethodType) and isinstance(obj.__self__, str):
            _check_method(meter, obj.__self__, obj.__name__, args)
        result = super().call(context, obj, *args, **kwargs)
        return _paid_result(meter, result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = _METER.get()
        meter.pay_for(left, right)
        _check_operator(meter, operator, left, right)
        result = super().call_binop(context, operator, left, right)
        meter.pay_for(result)
        return result

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(obj, str) and attr in ("encode", "expandtabs", "format_map", "maketrans", "translate"):
            return False
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None
        template = value.__self__

        def bounded(*args: Any, **kwargs: Any) -> str:
            meter = _METER.get()
            if any(re.search(r"\d{4}|\{", field[2] or "") for field in Formatter().parse(template)):
                raise LimitExceeded("it formats to a width of thousands of characters, or one given by a value")
            n_chars = meter.pay_for(*args, *kwargs.values())
            meter.check_chars(len(template) + template.count("{") * (n_chars + 32 * (len(args) + len(kwargs))))
            return wrapped(*args, **kwargs)

        return bounded


class _MeterTransformer(NodeTransformer):
    """Puts payments into a parsed template."""

    @staticmethod
    def _call(name: str, line: int, *args: nodes.Expr) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None, lineno=line)

    def _pay(self, node: nodes.Expr) -> nodes.Expr:
        return node if isinstance(node, nodes.Const) else self._call("meter_value", node.lineno, node)

    def _spend(self, owner: Any) -> nodes.Call:
        cost = 1
        for node in owner.body:
            cost += 1 + sum(1 for _ in node.find_all(nodes.Node))
            cost += sum(len(text.data) // _CHARS_PER_UNIT for text in node.find_all(nodes.TemplateData))
        return self._call("meter_spend", owner.lineno, nodes.Const(cost))

    def _visit_body(self, node: Any) -> Any:
        spend = self._spend(node)
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(spend, lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _visit_body

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """A round costs its body; one that the loop's `if` leaves out costs too."""
        spend = self._spend(node)
        self._visit_body(node)
        if node.test is not None:
            node.test = nodes.And(spend, cast(nodes.Expr, node.test), lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("meter_concat", node.lineno, *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        node.expr = self._pay(node.expr)
        for operand in node.ops:
            operand.expr = self._pay(operand.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._pay(node) if isinstance(node.arg, nodes.Slice) else node

    def _visit_literal(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        stored = isinstance(node, nodes.Tuple) and node.ctx != "load"
        return node if stored or not node.items else self._pay(node)

    visit_List = visit_Tuple = visit_Dict = _visit_literal


@pass_context
def _emit(_: Context, value: Any) -> Any:
    """`finalize`: pays for what an expression writes."""
    meter = _METER.get()
    meter.pay_for(value)
    if isinstance(value, str):
        return value
    text = str(value)
    meter.pay_for(text)
    return text


def _paid_result(meter: Meter, result: Any) -> Any:
    if isinstance(result, Iterator):
        return _paid_items(meter, result)
    meter.pay_for(result)
    return result


def _paid_items(meter: Meter, items: Iterator[Any]) -> Iterator[Any]:
    for item in items:
        meter.pay_for(item)
        yield item


def _metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0
    pay = Meter.pay_for_glance if name in _GLANCING_FILTERS else Meter.pay_for

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        meter = _METER.get()
        if len(args) > skip and name == "join":
            args = (*args[:skip], list(_limited(meter, args[skip])), *args[skip + 1 :])
        pay(meter, *args[skip:], *kwargs.values())
        _check_filter(meter, name, args[skip:], kwargs)
        return _paid_result(meter, function(*args, **kwargs))

    return wrapper


def _metered_test(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0
    pay = Meter.pay_for_glance if name in _GLANCING_TESTS else Meter.pay_for

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        pay(_METER.get(), *args[skip:], *kwargs.values())
        return function(*args, **kwargs)

    return wrapper


def _limited(meter: Meter, items: Iterable[Any]) -> Iterator[Any]:
    for n, item in enumerate(items):
        if n >= meter.max_nodes:
            raise LimitExceeded(f"it joins more than {meter.max_nodes} parts")
        yield item


def _check_filter(meter: Meter, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse filters whose result is much larger than what they are given."""
    options = [*args[1:], *kwargs.values()]
    numbers = [option for option in options if isinstance(option, int)]
    if name in ("batch", "center", "indent", "round", "slice", "tojson"):
        if any(abs(number) > _MAX_WIDTH for number in numbers):
            raise LimitExceeded(f"filter {name!r} is asked for a width of more than {_MAX_WIDTH}")
        text = args[0] if args and isinstance(args[0], str) else ""
        width = max([len(o) if isinstance(o, str) else o for o in options if isinstance(o, str | int)], default=0)
        meter.check_chars(text.count("\n") * width)
    if name == "tojson" and any(number > _CHARS_PER_UNIT for number in numbers):
        raise LimitExceeded("filter 'tojson' is asked for a wide indent")
    if name == "sum" and any(isinstance(option, list | tuple) for option in options):
        raise LimitExceeded("filter 'sum' is asked to add lists")
    if name == "format" and args:
        _check_operator(meter, "%", str(args[0]), (*args[1:], *kwargs.values()))
    if name == "replace" and args:
        _check_method(meter, str(args[0]), "replace", (*args[1:], *kwargs.values()))
    if name == "join" and args:
        separator = str(options[0]) if options and options[0] is not None else ""
        _check_method(meter, separator, "join", args[:1])


def _check_method(meter: Meter, text: str, name: str, args: tuple[Any, ...]) -> None:
    """Refuse string methods whose result is much larger than what they are given."""
    if name in ("center", "ljust", "rjust", "zfill") and any(isinstance(a, int) and a > _MAX_WIDTH for a in args):
        raise LimitExceeded(f"method {name!r} is asked for a width of more than {_MAX_WIDTH}")
    if name == "replace" and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        meter.check_chars(len(text) + text.count(old) * len(new))
    if name == "join" and args and isinstance(args[0], list | tuple | set | frozenset | Mapping):
        meter.check_chars(len(text) * len(args[0]))


def _check_operator(meter: Meter, operator: str, left: Any, right: Any) -> None:
    """Refuse operators whose result is much larger than what they are given."""
    if operator == "*":
        for value, count in ((left, right), (right, left)):
            if isinstance(value, str | bytes | list | tuple) and isinstance(count, int):
                meter.check_chars(len(value) * max(count, 0))
                if not isinstance(value, str | bytes) and len(value) * max(count, 0) > meter.max_nodes:
                    raise LimitExceeded(f"it makes a list of more than {meter.max_nodes} parts")
    if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > _MAX_INT_BITS:
            raise LimitExceeded("it makes a number of thousands of digits")
    if operator == "%" and isinstance(left, str | bytes):
        template = left if isinstance(left, str) else left.decode("latin-1")
        if re.search(r"%[^%a-zA-Z]*(?:\d{4}|\*)", template):
            raise LimitExceeded("it formats to a width of thousands of characters, or one given by a value")
        meter.check_chars(len(template) + template.count("%") * (meter.pay_for(right) + 1024))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in Hugging Face's templates: no escapes for HTML, none for characters outside ASCII."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> NoReturn:
    raise RefusedMessages(str(message))


def format_time(now: datetime, format: Any) -> str:
    """`strftime_now`, without the widths that glibc's strftime would obey."""
    if not isinstance(format, str) or len(format) > 256 or re.search(r"%[^%a-zA-Z]*\d", format):
        raise TemplateError(f"strftime_now: unusable format {str(format)[:64]!r}")
    return now.strftime(format)
