"""Reads dataclasses out of a git checkout with `ast`; nothing of it is run. For areal_schema.py."""

from __future__ import annotations

import ast
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

SCALARS = {"int", "float", "str", "bool"}
CONTAINERS = {
    "List": "list",
    "list": "list",
    "Tuple": "list",
    "tuple": "list",
    "Set": "list",
    "set": "list",
    "Dict": "dict",
    "dict": "dict",
}
GENERIC = re.compile(r"^(\s*(?:def|class) \w+)\[[^\]]*\]\(", re.MULTILINE)  # PEP 695, for older Pythons


@dataclass
class Module:
    path: str
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # name: (module, its name there)
    entries: list[str] = field(default_factory=list)  # classes that load_expr_config is called with


class Checkout:
    """The files of one commit, parsed once."""

    def __init__(self, root: Path, commit: str):
        self.root, self.commit = root, commit
        self.modules: dict[str, Module | None] = {}

    def git(self, *words: str) -> str | None:
        done = subprocess.run(["git", "-C", str(self.root), *words], capture_output=True, text=True, check=False)
        return done.stdout if done.returncode == 0 else None

    def examples(self) -> list[str]:
        listed = self.git("ls-tree", "-r", "--name-only", self.commit, "examples/", "recipe/") or ""
        return [path for path in listed.splitlines() if path.endswith(".py")]

    def module(self, path: str) -> Module | None:
        if path not in self.modules:
            text = self.git("show", f"{self.commit}:{path}")
            self.modules[path] = None if text is None else parse(path, text)
        return self.modules[path]

    def named(self, dotted: str) -> Module | None:
        path = dotted.replace(".", "/")
        return self.module(f"{path}.py") or self.module(f"{path}/__init__.py")


def is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(one) for one in node.decorator_list)


def is_enum(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).split(".")[-1] == "Enum" for base in node.bases)


def parse(path: str, text: str) -> Module:
    out = Module(path)
    tree = ast.parse(GENERIC.sub(r"\1(", text))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            out.classes[node.name] = node
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            out.constants[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            out.constants[node.target.id] = node.value
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = PurePosixPath(path).parts[: -node.level]
                base = ".".join([*parents, *([base] if base else [])])
            for name in node.names:
                out.imports[name.asname or name.name] = (base, name.name)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "load_expr_config" and len(call.args) == 2:
            out.entries.append(ast.unparse(call.args[1]))
    return out


class NotConstant(Exception):
    pass


class Reader:
    """The classes of one release, with names resolved through imports."""

    def __init__(self, checkout: Checkout):
        self.checkout = checkout
        self.classes: dict[str, tuple[Module, ast.ClassDef]] = {}
        self.names: dict[tuple[str, str], str] = {}  # (module path, class) of examples: the name it is written under
        self.own: dict[str, ast.expr] = {}  # what the class being read assigns besides its fields

    def add(self, module: Module, prefix: str = "") -> None:
        for name, node in module.classes.items():
            if is_dataclass(node) or is_enum(node):
                self.classes[prefix + name] = (module, node)
                self.names[module.path, name] = prefix + name

    def find(self, module: Module, name: str) -> tuple[Module, ast.AST] | None:
        """What a name means in a module: a class or a constant, here or where it is imported from."""
        if name in module.classes:
            return module, module.classes[name]
        if name in module.constants:
            return module, module.constants[name]
        if name not in module.imports:
            return None
        base, there = module.imports[name]
        beside = str(PurePosixPath(module.path).parent / base.replace(".", "/")) + ".py"
        source = self.checkout.named(base) or self.checkout.module(beside)
        return self.find(source, there) if source else None

    def class_name(self, module: Module, name: str) -> str | None:
        found = self.find(module, name)
        if found and isinstance(found[1], ast.ClassDef):
            node = found[1]
            if not (is_dataclass(node) or is_enum(node)):
                return None
            key = (found[0].path, node.name)
            if key not in self.names:  # a dataclass of another module: added under its own name
                self.names[key] = node.name
                self.classes[node.name] = (found[0], node)
            return self.names[key]
        return name if name in self.classes else None  # from `import *`

    # --- values

    def value(self, node: ast.expr, module: Module) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.List, ast.Tuple)):
            return [self.value(one, module) for one in node.elts]
        if isinstance(node, ast.Set):
            return sorted(self.value(one, module) for one in node.elts)
        if isinstance(node, ast.Dict):
            return {self.value(k, module): self.value(v, module) for k, v in zip(node.keys, node.values, strict=True) if k}
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand, module)
        if isinstance(node, ast.BinOp):
            return self.arithmetic(node, module)
        if isinstance(node, ast.Name) and node.id in self.own:
            return self.value(self.own[node.id], module)
        if isinstance(node, ast.Name):
            found = self.find(module, node.id)
            if found and isinstance(found[1], ast.expr):
                return self.value(found[1], found[0])
        if isinstance(node, ast.Attribute):
            return self.member(node, module)
        if isinstance(node, ast.Call):
            return self.call(node, module)
        raise NotConstant(ast.unparse(node))

    def arithmetic(self, node: ast.BinOp, module: Module) -> Any:
        left, right = self.value(node.left, module), self.value(node.right, module)
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.Pow):
            return left**right
        if isinstance(node.op, ast.Add):
            return left + right
        raise NotConstant(ast.unparse(node))

    def member(self, node: ast.Attribute, module: Module) -> Any:
        """A member of an enum, with or without `.value`."""
        if node.attr == "value" and isinstance(node.value, ast.Attribute):
            return self.member(node.value, module)
        if isinstance(node.value, ast.Name):
            found = self.find(module, node.value.id)
            if found and isinstance(found[1], ast.ClassDef) and is_enum(found[1]):
                for name, value in enum_members(found[1]):
                    if name == node.attr:
                        return self.value(value, found[0])
        raise NotConstant(ast.unparse(node))

    def call(self, node: ast.Call, module: Module) -> Any:
        name = ast.unparse(node.func)
        if name in ("int", "float") and len(node.args) == 1:
            value = self.value(node.args[0], module)
            return int(value) if name == "int" else float(value)
        if name in ("list", "tuple", "sorted", "set", "frozenset") and len(node.args) == 1:
            value = self.value(node.args[0], module)
            return sorted(value) if name not in ("list", "tuple") else list(value)
        known = self.class_name(module, name)
        if known is None:
            raise NotConstant(ast.unparse(node))
        definition = self.classes[known][1]
        order = [one.target.id for one in declared(definition) if isinstance(one.target, ast.Name)]
        given = {order[i]: self.value(arg, module) for i, arg in enumerate(node.args)}
        given |= {str(one.arg): self.value(one.value, module) for one in node.keywords}
        return {"class": known, **({"set": given} if given else {})}

    # --- types

    def type(self, node: ast.expr, module: Module) -> tuple[str, list[Any]]:
        """The type in words and the choices of a Literal: int, str?, list[int]?, dict[str,any], float|str, a class."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return self.type(ast.parse(node.value, mode="eval").body, module)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self.union(flat_union(node), module)
        if isinstance(node, ast.Subscript):
            head = ast.unparse(node.value).split(".")[-1]
            inside = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
            if head in ("Optional", "Union"):
                return self.union(inside + ([ast.Constant(None)] if head == "Optional" else []), module)
            if head == "Literal":
                return "str", [self.value(one, module) for one in inside]
            words = [self.type(one, module)[0] for one in inside if not (isinstance(one, ast.Constant) and one.value is Ellipsis)]
            return f"{CONTAINERS[head]}[{','.join(words)}]", []
        name = ast.unparse(node).split(".")[-1]
        if name in SCALARS:
            return name, []
        if name in CONTAINERS:
            return CONTAINERS[name], []
        return self.class_name(module, name) or "any", []

    def union(self, parts: list[ast.expr], module: Module) -> tuple[str, list[Any]]:
        kept = [one for one in parts if not (isinstance(one, ast.Constant) and one.value is None)]
        read = [self.type(one, module) for one in kept]
        optional = "?" if len(kept) < len(parts) else ""
        return "|".join(one[0] for one in read) + optional, [choice for one in read for choice in one[1]]

    # --- fields

    def fields(self, name: str) -> dict[str, dict[str, Any]]:
        module, node = self.classes[name]
        self.own = class_constants(node)
        out = {}
        for line in declared(node):
            assert isinstance(line.target, ast.Name)
            words, choices = self.type(line.annotation, module)
            row: dict[str, Any] = {"type": words}
            row |= self.default(line.value, module)
            choices = choices or self.choices(line.value, module)
            if choices:
                row["choices"] = choices
            out[line.target.id] = row
        return out

    def default(self, node: ast.expr | None, module: Module) -> dict[str, Any]:
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "field":
            given = {one.arg: one.value for one in node.keywords}
            if "default_factory" in given:
                return self.made(given["default_factory"], module)
            node = given.get("default")
        if node is None or ast.unparse(node) in ("MISSING", "dataclass_missing"):
            return {"required": True}
        try:
            return {"default": self.value(node, module)}
        except NotConstant as expression:
            return {"computed": str(expression)}

    def made(self, factory: ast.expr, module: Module) -> dict[str, Any]:
        name = ast.unparse(factory)
        if name in ("list", "dict"):
            return {"default": [] if name == "list" else {}}
        try:
            if isinstance(factory, ast.Lambda):
                return {"default": self.value(factory.body, module)}
            return {"default": self.call(ast.Call(func=factory, args=[], keywords=[]), module)}
        except NotConstant as expression:
            return {"computed": str(expression)}

    def choices(self, node: ast.expr | None, module: Module) -> list[Any]:
        if not isinstance(node, ast.Call):
            return []
        for one in node.keywords:
            if one.arg == "metadata" and isinstance(one.value, ast.Dict):
                for key, value in zip(one.value.keys, one.value.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "choices":
                        try:
                            return list(self.value(value, module))
                        except NotConstant:
                            return []
        return []

    def bases(self, name: str) -> list[str]:
        module, node = self.classes[name]
        found = [self.class_name(module, ast.unparse(base).split(".")[-1]) for base in node.bases]
        return [one for one in found if one]

    def ancestors(self, name: str) -> set[str]:
        out: set[str] = set()
        for base in self.bases(name):
            out |= {base} | self.ancestors(base)
        return out


def flat_union(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return flat_union(node.left) + flat_union(node.right)
    return [node]


def declared(node: ast.ClassDef) -> list[ast.AnnAssign]:
    return [
        line
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and "ClassVar" not in ast.unparse(line.annotation)
    ]


def class_constants(node: ast.ClassDef) -> dict[str, ast.expr]:
    """The ClassVar values of a dataclass."""
    return {
        line.target.id: line.value
        for line in node.body
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and line.value
        and "ClassVar" in ast.unparse(line.annotation)
    }


def enum_members(node: ast.ClassDef) -> list[tuple[str, ast.expr]]:
    return [
        (line.targets[0].id, line.value)
        for line in node.body
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name)
    ]
