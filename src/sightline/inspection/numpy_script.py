"""Export a trace as a NumPy script that recomputes every step, in the style of hand-written code.

The folder holds the saved trace and `script.py`. The script loads the weights and the input tokens, computes each named
tensor from earlier ones and stops at the first number that differs from the recorded one.

Unnamed records are written in place; those used several times get a variable. Variables have the names of their tensors
within a part of the model (`query`), preceded by the part if other parts read them (`encoder_layers_0_output`).
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from sightline.files import atomic_folder, write_atomically
from sightline.inspection.numpy_functions import FUNCTIONS, source_of_functions
from sightline.inspection.operations import OPERATIONS, numpy_value
from sightline.inspection.trace import GIVEN, Record, Ref, Trace, references

SCRIPT = "script.py"
# float32 sums in another order, through a whole network: values are recomputed from the tokens
RELATIVE, ABSOLUTE = 1e-3, 1e-4
_LINE = 116  # characters
_LITERAL = 8  # integers of an array that is written out

_HEAD = '''"""{headline}

Every step of this computation in plain NumPy, from tokens and weights, compared with what the model computed.
Run it with: python {script} (needs NumPy 2 and safetensors).
"""

import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parent
recorded = load_file(HERE / "tensors.safetensors")  # what the model computed
W = load_file(HERE / "weights.safetensors")
checked = 0


def check(part, call=1, strides={{}}, **tensors):
    """Compare tensors of a part of the model with what it computed there."""
    global checked
    for point, ours in tensors.items():
        name = (part + "." if part else "") + point.replace("__", ".") + (f"#{{call}}" if call > 1 else "")
        theirs, ours = recorded[name], np.asarray(ours)
        if name in strides:  # a sample was recorded
            ours = ours[tuple(slice(None, None, stride) for stride in strides[name])]
        assert ours.shape == theirs.shape, f"{{name}}: {{ours.shape}} is not {{theirs.shape}}"
        close = np.isclose(ours, theirs, rtol={relative}, atol={absolute}, equal_nan=True)
        assert close.all(), f"{{name}}: {{np.argwhere(~close)[0]}} is {{ours[~close][0]}}, not {{theirs[~close][0]}}"
        checked += 1
        print(f"{{checked:4d}}  {{name}} {{ours.shape}}")


'''


def export_script(trace: Trace, folder: Path) -> Path:
    """Write a new folder with the trace and its script; return the script's path."""
    if not trace.has_arithmetic:
        raise ValueError("this trace has no arithmetic to export; make it with run.trace or record_arithmetic")
    with atomic_folder(folder) as unfinished:
        trace.write(unfinished)
        write_atomically(unfinished / SCRIPT, script_of(trace).encode("utf-8"))
    return folder / SCRIPT


def script_of(trace: Trace) -> str:
    """The text of the script."""
    from sightline.inspection.walkthrough import headline

    title = re.sub(r'["\\\x00-\x1f]', " ", headline(trace))
    head = _HEAD.format(headline=title, script=SCRIPT, relative=RELATIVE, absolute=ABSOLUTE)
    body = "\n".join(_Writer.of(trace).lines())
    functions = source_of_functions(body)
    end = '\nprint(f"all {checked} steps are what the model computed")\n'
    return head + functions + ("\n\n" if functions else "") + body + end


# --- sections and variables -------------------------------------------------------------------------------------------


def _part(name: str) -> str:
    """The section of a record: its layer, or the outermost part of the model."""
    match = re.match(r"(.*?\b(?:layers|attentions)\.\d+)\.", name)
    return match[1] if match else name.partition(".")[0] if "." in name else ""


@dataclass
class _Writer:
    """Writes a trace line by line."""

    trace: Trace
    uses: Counter[str]  # number of uses of each record as an argument
    users: Mapping[str, list[Record]]  # the records that use it
    texts: dict[str, str] = field(default_factory=dict)  # record → its variable, or its expression
    part: str = ""  # of the current section
    taken: set[str] = field(default_factory=set)  # variables of the current section
    shared: set[str] = field(default_factory=set)  # variables used in several sections

    @staticmethod
    def of(trace: Trace) -> _Writer:
        uses: Counter[str] = Counter()
        users: dict[str, list[Record]] = {}
        for record in trace.records:
            names = list(references(record.arguments))
            uses.update(names)
            for name in dict.fromkeys(names):
                users.setdefault(name, []).append(record)
        return _Writer(trace, uses, users)

    def lines(self) -> Iterator[str]:
        for section, records in groupby(self.trace.records, key=_section):
            self.part, self.taken = section[0], set()
            lines = [line for line in self._section(list(records)) if line]
            if not lines:
                continue
            # encoder.layers.0 → encoder, layer 0
            title = re.sub(r"\.?(layers|attentions)\.(\d+)", r", layer \2", self.part or "output").replace("_", " ")
            title = title.lstrip(", ") + (f", call {section[1]}" if section[1] > 1 else "")
            yield f"\n# --- {title} " + "-" * max(3, 106 - len(title))
            if any('w["' in line for line in lines):
                cut = len(self.part) + 1
                yield f'w = {{name[{cut}:]: weight for name, weight in W.items() if name.startswith("{self.part}.")}}'
            yield from lines

    def _section(self, records: list[Record]) -> Iterator[str]:
        checked: list[Record] = []
        for record in records:
            if record.unnamed:
                yield self._unnamed(record)
                continue
            if checked and record.path != checked[0].path:
                yield self._check(checked)
                checked = []
            yield self._named(record)
            if record.operation != GIVEN:
                checked.append(record)
        yield self._check(checked)

    def _check(self, records: list[Record]) -> str:
        if not records:
            return ""
        options = [f"call={_call(records[0])}"] if _call(records[0]) > 1 else []
        sampled = {record.key: record.strides for record in records if record.strides}
        options += [f"strides={sampled!r}"] if sampled else []
        tensors = [f"{record.point}={self.texts[record.key]}" for record in records]
        return _wrapped("check(", [f'"{records[0].path}"', *options, *tensors], ")")

    def _named(self, record: Record) -> str:
        text = self._expression(record)
        if record.operation in ("same", "shown_as") and text.isidentifier():  # another name of a variable
            self.texts[record.key] = text
            return ""
        variable = self.texts[record.key] = self._variable(record)
        line, shape = f"{variable} = {text}", f"  # {record.shape}" if record.shape else ""
        comment = f"{shape or '  #'} {record.note if record.operation is None else record.formula}".rstrip(" #")
        if len(line + comment) <= _LINE:
            return line + comment
        return line + shape if len(line + shape) <= _LINE else _assignment(variable, text) + shape

    def _unnamed(self, record: Record) -> str:
        """A record between two taps: a variable if it is used again or long, else written in place."""
        text = self._expression(record)
        if text.isidentifier() or not (self._kept(record) or len(text) > _LINE):
            self.texts[record.key] = text
            return ""
        variable = self.texts[record.key] = self._shared_variable(record)
        return _assignment(variable, text)

    def _kept(self, record: Record) -> bool:
        """True for unnamed records that get a variable because they are used several times."""
        of = record.arguments.get("x")
        weight = record.operation == "transpose" and isinstance(of, Ref) and "~" not in of.name  # short: repeated
        return self.uses[record.key] > 1 and record.operation not in (GIVEN, None, "same") and not weight

    def _expression(self, record: Record) -> str:
        if record.operation in (GIVEN, None):
            return _constant(record)
        assert record.operation is not None
        template = OPERATIONS[record.operation].expression(record.arguments)
        elsewhere = record.unnamed and not self._kept(record) and self._elsewhere(record)
        filled = _Filled(self, record.arguments, elsewhere).visit(ast.parse(template, mode="eval").body)
        return _text(_Simplify().visit(filled))

    def operand(self, name: str, whole: bool) -> ast.expr:
        """The expression of a record or a weight."""
        if name in self.texts:
            text = self.texts[name]
        elif self.part and name.startswith(self.part + ".") and not whole:
            text = f'w["{name[len(self.part) + 1 :]}"]'
        else:
            text = f'W["{name}"]'
        return ast.parse(text, mode="eval").body

    def _variable(self, record: Record) -> str:
        """`query` within its section; `encoder_output` if other sections use it."""
        aliases = [record, *self._aliases(record)]
        if any(self._elsewhere(each) for each in aliases):
            name = min((each.name for each in aliases), key=lambda name: (name.count("."), len(name)))
            return self._unique(f"{name}_{_call(record)}" if _call(record) > 1 else name, self.shared)
        short = record.point
        if sum(_section(each) == _section(record) and each.point == short for each in self.trace) > 1:
            inside = record.name.removeprefix(self.part + ".").split(".")
            short = "_".join(inside[-2:])
        return self._unique(short, self.taken)

    def _shared_variable(self, record: Record) -> str:
        """The name of an unnamed record: an alias, or the tensors computed from it (`query_key_value`)."""
        aliases = self._aliases(record)
        if aliases:
            return self._variable(aliases[0])
        points: dict[str, None] = {}
        waiting, seen = [record.key], set()
        while waiting:
            key = waiting.pop(0)
            seen.add(key)
            for user in self.users.get(key, []):
                if not user.unnamed:
                    points.setdefault(user.point)
                elif user.key not in seen:
                    waiting.append(user.key)
        names = list(points)
        name = "_".join(names) if len(names) <= 3 else f"{names[0]}_to_{names[-1]}"
        shared = self._elsewhere(record)
        return self._unique(name if len(points) > 1 else f"before_{name}", self.shared if shared else self.taken)

    def _unique(self, name: str, names: set[str]) -> str:
        word = re.sub(r"\W", "_", name)
        word = f"_{word}" if word[:1].isdigit() else word
        if keyword.iskeyword(word) or word in {"w", "W", "np", "math", *FUNCTIONS}:
            word += "_"
        unique, count = word, 1
        while unique in self.taken or unique in self.shared:
            count += 1
            unique = f"{word}_{count}"
        names.add(unique)
        return unique

    def _aliases(self, record: Record) -> list[Record]:
        """The named records that are aliases of this one."""
        same = [user for user in self.users.get(record.key, []) if user.operation in ("same", "shown_as")]
        return [alias for user in same for alias in ([] if user.unnamed else [user]) + self._aliases(user)]

    def _elsewhere(self, record: Record) -> bool:
        """True if another section uses a record, also through aliases and expressions written in place."""
        section, seen = _section(record), {record.key}
        waiting = [(record, True)]  # and whether it is a variable by itself
        while waiting:
            current, variable = waiting.pop()
            for user in self.users.get(current.key, []):
                if _section(user) != section:
                    return True
                same = user.operation in ("same", "shown_as")
                follows = not self._kept(user) if user.unnamed else same and variable
                if follows and user.key not in seen:
                    seen.add(user.key)
                    waiting.append((user, same and variable))
        return False


def _assignment(variable: str, text: str) -> str:
    """An assignment in one line; long calls and sums are wrapped."""
    line = f"{variable} = {text}"
    tree = ast.parse(text, mode="eval").body
    if len(line) <= _LINE:
        return line
    if isinstance(tree, ast.Call):
        return _wrapped(f"{variable} = {_text(tree.func)}(", [*map(_text, tree.args), *map(_text, tree.keywords)], ")")
    if isinstance(tree, ast.BinOp):
        sign = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@"}.get(type(tree.op))
        if sign is not None and text == f"{_text(tree.left)} {sign} {_text(tree.right)}":
            return f"{variable} = (\n    {_text(tree.left)}\n    {sign} {_text(tree.right)}\n)"
    return line


def _text(tree: ast.AST) -> str:
    return ast.unparse(tree).replace("'", '"')


def _wrapped(start: str, parts: list[str], end: str) -> str:
    """A call in one line, or wrapped."""
    line = start + ", ".join(parts) + end
    if len(line) <= _LINE:
        return line
    lines = [""]
    for part in parts:  # as many in a line as fit
        longer = f"{lines[-1]} {part}," if lines[-1] else f"    {part},"
        lines = [*lines[:-1], longer] if len(longer) <= _LINE or not lines[-1] else [*lines, f"    {part},"]
    return "\n".join([start, *lines, end])


def _call(record: Record) -> int:
    """The run of its module, from 1."""
    return int(record.key.rpartition("#")[2].split("~")[0]) if "#" in record.key else 1


def _section(record: Record) -> tuple[str, int]:
    return _part(record.key.split("~")[0].split("#")[0]), _call(record)


def _constant(record: Record) -> str:
    """An input: ranges, zeros, ones and short lists are written out, other arrays read from the file."""
    value = numpy_value(record.tensor)
    if record.unnamed and value.size:
        if value.ndim == 1 and value.dtype == np.int64 and np.array_equal(value, np.arange(len(value))):
            return f"np.arange({len(value)})"
        first = value.flat[0]
        if value.ndim and value.size > 1 and (value == first).all() and np.isfinite(first):
            shape = f"{value.shape}" if value.ndim > 1 else str(len(value))
            kind = {"bool": ", bool", "int64": ", int"}.get(str(value.dtype), ", np.float32")
            if first in (0, 1):
                return f"np.{'ones' if first else 'zeros'}({shape}{kind})"
        if value.ndim == 1 and value.size <= _LITERAL and value.dtype == np.int64:
            return f"np.array({value.tolist()})"
    return f'recorded["{record.key}"]'


class _Filled(ast.NodeTransformer):
    """Replaces argument names by operands and constants."""

    def __init__(self, writer: _Writer, arguments: Mapping[str, Any], whole: bool) -> None:
        self.writer, self.arguments, self.whole = writer, arguments, whole

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """`indices[0]`: an item of a list of references."""
        if isinstance(node.value, ast.Name) and isinstance(self.arguments.get(node.value.id), list):
            assert isinstance(node.slice, ast.Constant)
            return self._expression(self.arguments[node.value.id][node.slice.value])
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._expression(self.arguments[node.id]) if node.id in self.arguments else node

    def _expression(self, value: Any) -> ast.expr:
        if isinstance(value, Ref):
            return self.writer.operand(value.name, self.whole)
        if isinstance(value, list | tuple):
            return ast.List([self._expression(part) for part in value], ast.Load())
        if isinstance(value, float) and not math.isfinite(value):
            return ast.parse("-np.inf" if value < 0 else "np.inf", mode="eval").body
        return ast.parse(_root(value) or repr(value), mode="eval").body


def _root(value: Any) -> str:
    """√6 and 1/√6 as `math.sqrt(6)` and `1 / math.sqrt(6)`; "" for other numbers."""
    if not isinstance(value, float) or not 0.01 < value < 100 or value == 1:
        return ""
    square = value**2 if value > 1 else value**-2
    if abs(square - round(square)) > 1e-9 * square or math.isqrt(round(square)) ** 2 == round(square):
        return ""
    return f"math.sqrt({round(square)})" if value > 1 else f"1 / math.sqrt({round(square)})"


class _Simplify(ast.NodeTransformer):
    """x.T.T → x; x * (1 / y) → x / y; two reshapes → one; a transposition undone → x."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        inner = node.value
        if node.attr in ("T", "mT") and isinstance(inner, ast.Attribute) and inner.attr == node.attr:
            return inner.value
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        right = node.right
        if isinstance(node.op, ast.Mult) and isinstance(right, ast.BinOp) and isinstance(right.op, ast.Div):
            if isinstance(right.left, ast.Constant) and right.left.value == 1:
                return ast.BinOp(node.left, ast.Div(), right.right)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        outer, inner = node.func, node.func.value if isinstance(node.func, ast.Attribute) else None
        if not (isinstance(outer, ast.Attribute) and isinstance(inner, ast.Call)):
            return node
        if not isinstance(inner.func, ast.Attribute) or outer.attr != inner.func.attr:
            return node
        if outer.attr == "reshape":
            outer.value = inner.func.value
        elif outer.attr == "transpose":
            first, second = ([ast.literal_eval(each) for each in call.args] for call in (inner, node))
            order = [first[k] for k in second]
            return inner.func.value if order == sorted(order) else node
        return node
