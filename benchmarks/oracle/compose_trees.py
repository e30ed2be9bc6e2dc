"""The questions of compose_cases.py about small configurations: files, overrides, interpolations. All texts were written for this test."""

from __future__ import annotations

from typing import Any


def one(name: str, text: str, *overrides: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "files": {"main.yaml": text}, "overrides": list(overrides), **more}


def many(name: str, files: dict[str, str], *overrides: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "files": files, "overrides": list(overrides), **more}


LINKS = """
seed: 1
lr: 1e-6
name: run
flag: true
nothing: null
actor: {path: qwen, dtype: bfloat16, optimizer: {lr: "${lr}", type: adam}, scheduling: [{gpu: 1, port: 2}]}
"""
BASE = "a: 1\nb: {c: 2, d: [1, 2, {e: 3}]}\nn: null\nm: ???\ns: text\n"
ENGINES = {
    "main.yaml": "defaults:\n  - model_engine: dp\n  - actor@role.actor: ${model_engine}_actor\n  - _self_\nrole: {actor: {mini: 256}}\n",
    "model_engine/dp.yaml": "# @package _global_\nmodel_engine: dp\n",
    "model_engine/megatron.yaml": "# @package _global_\nmodel_engine: megatron\n",
    "actor/dp_actor.yaml": "defaults:\n  - actor\n  - _self_\nstrategy: fsdp\nfsdp: {offload: false}\n",
    "actor/megatron_actor.yaml": "defaults:\n  - actor\n  - _self_\nstrategy: megatron\nmegatron: {tp: 1}\n",
    "actor/actor.yaml": "mini: 128\nbudget: 16384\nlog: ${oc.select:role.actor.budget,1}\n",
}
GROUPS = {
    "main.yaml": "defaults: [db: mysql, _self_]\nport: 1\n",
    "db/mysql.yaml": "host: m\nport: 3306\n",
    "db/postgres.yaml": "host: p\nport: 5432\n",
}
HOW_IT_FAILS = "told as a problem with its place; the value is unknown"
UNSET = "a missing environment variable must not stop the reading: the value is unknown"
HYDRAS_OWN = "Hydra's own node is not composed: overrides of it are set aside and change no memory"

COMPOSE: list[dict[str, Any]] = [
    # interpolation
    one(
        "absolute",
        LINKS + "ref: {path: '${actor.path}', o: '${actor.optimizer}', s: '${actor.scheduling}', l: '${actor.optimizer.lr}'}",
    ),
    one("relative", "x: 1\nr: {x: 2, a: '${.x}', b: '${..x}', c: {d: '${..x}', e: '${...x}', f: '${....x}'}}"),
    one("relative in a list", "x: 1\nl: [5, '${.0}', '${..x}', {y: '${..0}', z: '${...x}'}]"),
    one("in a text", LINKS + "t: '${name}-${seed}_${lr}'\nu: 'x${flag}y${nothing}'\nv: '$${name}$'\nw: '${name}'\nz: '${seed}'"),
    one("nested", "which: b\nb: {k: 5}\nt: '${${which}.k}'\nu: '${b.${key}}'\nkey: k\nv: '${${empty}.k}'\nempty: null"),
    one(
        "brackets",
        "a: {b: {c: 1}, d: [7, 8]}\nt: '${a[b].c}'\nu: '${[a].b[c]}'\nv: '${a.d[1]}'\nw: '${a.d.0}'\nx: '${a.d.9}'\ny: '${a.d.x}'",
    ),
    one("spaces", "a: {b: 1}\nt: '${ a.b }'\nu: '${oc.select: a.b , 2}'"),
    one("of a container in a text", "l: [1, a, 1e-6]\nm: {a: 1, b: [x]}\nt: 'x${l}y${m}'"),
    one(
        "floats in a text",
        "a: 1e-6\nb: 1e16\nc: 1.0\nd: 123456.789\ne: .inf\nf: 0.0001\ng: 1e22\nt: '${a} ${b} ${c} ${d} ${e} ${f} ${g}'",
    ),
    one("escaped", "a: 1\nt: '\\${a}'\nu: '\\\\${a}'\nv: '\\\\\\${a}'\nw: '\\x ${a}'\nx: '${a}\\'\ny: 'a\\\\b'"),
    one("of a list item", "l: ['${a}', 'x${a}']\na: 1"),
    one("circle", "a: ${b}\nb: ${c}\nc: ${a}\nd: 1"),
    one("circle of one", "a: ${a}"),
    one("to the parent", "a: {b: '${a}', c: 1}"),
    one("to the parent from below", "a: {b: {c: '${..}'}}", because=HOW_IT_FAILS, ours={"error": "the grammar does not know it"}),
    one(
        "circle through maps",
        "a: {x: '${b}'}\nb: {y: '${a}'}",
        because="Python's recursion ends it; here the circle is found",
        ours={"a": {"x": {"y": "error"}}, "b": {"y": {"x": "error"}}},
    ),
    one("of a missing key", "a: ${nope}\nb: x${nope.y}\nc: {d: 1}\ne: ${c.x}\nf: ${c.d.x}"),
    one("of a missing value", "a: ???\nb: ${a}\nc: x${a}\nd: {e: '???'}\nf: ${d.e}\ng: ${d}\nh: ${a.x}"),
    one("of null", "a: null\nb: ${a}\nc: ${a.x}\nd: x${a}"),
    one("a key of digits", "a: {1: x, '2': y, false: z}\nb: ${a.1}\nc: ${a.2}\nd: ${a.false}"),
    one("to a map that links", "a: {b: {c: '${..d}', e: '${.f}', f: 1}, d: 2}\ng: ${a.b}\nh: ${a}"),
    one("to a link", "a: ${b}\nb: ${c}\nc: {d: '${e}'}\ne: 5\nf: ${a.d}"),
    one("inside of keys", "'${a}': 1\na: b"),
    one("broken: open", "a: ${b", because=HOW_IT_FAILS, ours={"a": "error"}),
    one("broken: blank", "a: ${b c}\nb: 1", because=HOW_IT_FAILS, ours={"a": "error", "b": "int 1"}),
    one("broken: partial key", "a: ${b${c}}", because=HOW_IT_FAILS, ours={"a": "error"}),
    one("text with braces", "a: '{x}'\nb: '$x'\nc: '$'\nd: '{$}'\ne: '${f}}'\nf: 1"),
    # resolvers
    one(
        "oc.env",
        "a: ${oc.env:OOM_A}\nb: ${oc.env:OOM_B,default}\nc: ${oc.env:OOM_B,null}\nd: ${oc.env:OOM_B,5}\ne: x${oc.env:OOM_A}y\nf: ${oc.env:OOM_B,}\ng: ${oc.env:OOM_B,true}",
        env={"OOM_A": "7"},
    ),
    one("oc.env of a link", "n: OOM_A\na: ${oc.env:${n}}\nb: ${oc.env:OOM_B,${n}}", env={"OOM_A": "seven"}),
    one(
        "oc.env unset",
        "a: ${oc.env:OOM_UNSET}\nb: ${a}\nc: x${a}\nd: 1\ne: ${oc.decode:${a}}",
        because=UNSET,
        ours={"a": "unknown", "b": "unknown", "c": "unknown", "d": "int 1", "e": "unknown"},
    ),
    one(
        "oc.select",
        "a: 1\nm: ???\nn: null\nr: {k: 2, a: '${oc.select:.k}', b: '${oc.select:..a,9}', c: '${oc.select:.none,9}'}\nb: ${oc.select:a,5}\nc: ${oc.select:z,5}\nd: ${oc.select:z}\ne: ${oc.select:m,5}\nf: ${oc.select:n,5}\ng: ${oc.select:a.b.c,5}\nh: ${oc.select:r}\ni: ${oc.select:z,${a}}",
    ),
    one(
        "oc.select through a link to nothing",
        "m: ???\na: ${m}\nb: ${oc.select:a,5}\nc: ${oc.select:a.x,5}\nd: ${oc.select:m.x,5}",
    ),
    one("add through a link to nothing", "m: ???\na: ${m}", "+a.x=1"),
    one("delete through a link", "a: {x: {y: 1, z: 2}}\nb: ${a}", "~b.x.y"),
    one("add a map over a broken link", "a: ${nope}", "+a={x:1}"),
    one("oc.select of what fails", "a: ${nope}\nb: ${oc.select:a,5}\nc: ${oc.select:a.b,5}"),
    one(
        "oc.decode",
        "a: ${oc.decode:'1e-6'}\nb: ${oc.decode:${t}}\nt: '[1, {x: yes}, null]'\nc: ${oc.decode:null}\nd: ${oc.decode:5}\ne: ${oc.decode:'${s}'}\ns: '010'\nf: ${oc.decode:'a b'}\ng: ${oc.decode:'{'}\nh: ${oc.decode:${oc.env:OOM_N,8}}\ni: \"${oc.decode:'${t}'}\"\nj: \"${oc.decode:'\\\\${s}'}\"",
    ),
    one("oc.create", "a: '${oc.create:{x: 1, y: [2]}}'\nb: ${oc.create:[1, 2]}\nc: ${a.x}\nd: ${oc.create:null}"),
    one(
        "oc.dict",
        "m: {x: 1, y: '${z}'}\nz: 5\nk: ${oc.dict.keys:m}\nv: ${oc.dict.values:m}\nn: ${oc.dict.keys:nope}\no: ${oc.dict.keys:z}\nr: {m: {q: 7}, k: '${oc.dict.keys:.m}', v: '${oc.dict.values:.m}'}\nt: ${v.1}",
    ),
    one("oc.deprecated", "new: 5\nold: ${oc.deprecated:new}\nbad: ${oc.deprecated:nope}"),
    one(
        "custom resolver",
        "a: ${my.own:1,2}\nb: ${a}\nc: x${sum:1,2}",
        because="the program registers it, which is not run",
        ours={"a": "error", "b": "error", "c": "error"},
    ),
    one("now", "a: 1\nb: run-${now:%Y}", because="the time of the launch is not known", ours={"a": "int 1", "b": "unknown"}),
    one(
        "resolver arguments",
        't: "${oc.decode:\'a,b\'}"\nu: "${oc.create:{a: \'x y\', b: \\"q\'q\\", c: [[], {}]}}"\nv: ${oc.create:[a b, a\\,b, 1 2, 0x1, .5, -, /x/y, a:b]}\nw: ${oc.create:[ , a]}\nx: ${oc.create:[true, NULL, 1_0, 1e3, inf]}',
    ),
    one(
        "resolver arguments with links",
        "a: 1\nb: x\nt: \"${oc.create:[${a}, ${b}y, '${b} z', {k: ${a}}]}\"\nu: ${oc.select:${b}${b}, none}\nxx: 3",
    ),
    # YAML in files
    one(
        "typing",
        "a: 010\nb: yes\nc: 1e-6\nd: 32_768\ne: 1:30\nf: 2024-01-31\ng: 'A100-80GB:8'\nh: 0x1F\ni: ~\nj: ''\nk: ???\n3: x\n2.5: y\noff: z",
    ),
    one(
        "one and true as keys",
        "a: {1: x, true: y}",
        because="True == 1 makes them one key in Python",
        ours={"a": {"int 1": "str x", "bool True": "str y"}},
    ),
    one("anchors", "a: &x {k: 1, l: [1]}\nb: *x\nc: [*x, *x]\nd: &s text\ne: *s"),
    one(
        "merge keys",
        "a: &x {k: 1, l: 2}\ny: &y {l: 3, m: 4}\nb: {<<: *x, l: 5}\nc: {<<: [*x, *y], n: 1}\nd: {n: 1, <<: *x}\ne: {<<: {q: 1}}",
    ),
    one("missing in flow style", "a: {b: ???}"),
    one("merge key of a scalar", "a: {<<: 1}"),
    one("duplicate key", "a: 1\nb: {c: 1, c: 2}"),
    one(
        "duplicate integer key",
        "a: {1: x, 1: y}",
        because="OmegaConf's check sees text keys only and keeps the last; written twice it is a mistake all the same",
        ours={"error": "duplicate"},
    ),
    one("empty file", ""),
    one("comments only", "# nothing\n"),
    one("a list as file", "[1, 2]"),
    one("a text as file", "hello", because="OmegaConf makes a key of it, which no job means", ours={"error": "a map"}),
    one("a number as file", "5"),
    one("block text", "run: |\n  set -e\n  train --model.model_max_length 512 ${PER_DEVICE}\nx: >-\n  a\n  b\n"),
    one("null key", "null: 1"),
    one("two documents", "a: 1\n---\nb: 2\n"),
    one("nested lists", "a: [[1, 2], [3, [4]]]\nb: ${a.1.1.0}"),
    one("unicode", "a: \u00e9\nb: '${a}\u00fc'"),
    # overrides of values
    one("change", BASE, "a=5", "b.c=x", "s='a b'", "n=1e-6", "m=7"),
    one("change twice", BASE, "a=5", "a=6"),
    one("change of an unknown key", BASE, "ab=5"),
    one("change of an unknown key below", BASE, "b.cc=5"),
    one("change below a value", BASE, "a.b=5"),
    one("change below null", BASE, "n.x=5"),
    one("change in a list", BASE, "b.d.0=9", "b.d.2.e=5"),
    one("change behind a list", BASE, "b.d.3=9"),
    one("change of a list by a word", BASE, "b.d.x=9"),
    one("change to a list", BASE, "b.d=[7]", "a=[1,2]", "s={x:1}"),
    one("change a map with a map", BASE, "b={c:5}"),
    one("change a map with a new key", BASE, "b={x:5}"),
    one("change a map to a value", BASE, "b=5"),
    one("change a list to a map", BASE, "b.d={x:1}"),
    one("change a map to a list", BASE, "b=[1]"),
    one("change to missing", BASE, "a=???"),
    one("change to null", BASE, "b=null", "a=null"),
    one("change to empty", BASE, "a=", "s= "),
    one("change to a link", BASE, "a=${b.c}", "s=x${b.c}", "b.c=9"),
    one("change through a link", "a: {x: 1}\nb: ${a}", "b.x=5"),
    one("add through a link", "a: {x: 1, y: 2}\nb: ${a}", "+b.x=5"),
    one("change a link", "a: {x: 1}\nb: ${a}", "b=5"),
    one("change a link with a map", "a: {x: 1}\nb: ${a}", "b={x:5}"),
    one("add", BASE, "+x=1", "+b.y=2", "+p.q.r=[1,{z:2}]"),
    one("add what exists", BASE, "+a=5"),
    one("add what is null", BASE, "+n=5", "+m=6"),
    one("add a map to a map", BASE, "+b={x:5,c:7}"),
    one("add a list to a list", BASE, "+b.d=[5]"),
    one("add below null", BASE, "+n.x=5"),
    one("add below a value", BASE, "+a.x=5"),
    one("add in a list", BASE, "+b.d.2.f=5"),
    one("add behind a list", BASE, "+b.d.3=5"),
    one("add to a map in a list", BASE, "+b.d.2.env.X=0"),
    one("force", BASE, "++a=5", "++x=1", "++b.c=3", "++b.z=4", "++n=1"),
    one("force a map", BASE, "++b={x:1}", "++a={y:1}"),
    one("delete", BASE, "~a", "~b.c"),
    one("delete with value", BASE, "~a=1", "~s=text"),
    one("delete with another value", BASE, "~a=2"),
    one("delete what is not there", BASE, "~x"),
    one("delete null", BASE, "~n"),
    one("delete a list item", BASE, "~b.d.0"),
    one("delete a map", BASE, "~b"),
    one("package on no group", BASE, "a@b=5"),
    one("not a group", BASE, "x/y=5"),
    one("sweep", BASE, "a=1,2"),
    one("sweep by function", BASE, "a=choice(1,2)"),
    one("lexer error", BASE, "s=<path>"),
    one("hydra's own", BASE, "hydra.run.dir=out", "hydra.job.chdir=true"),
    one("hydra in the file", "a: 1\nhydra:\n  run: {dir: x}\n"),
    one("a value that looks like a group", "model: {x: 1}", "model=small"),
    one("new key with + over a missing parent", "a: 1", "+actor.scheduling_spec.0.env_vars.X=0"),
    one("index below a list", "actor: {spec: [{env: {A: 1}}]}", "+actor.spec.0.env.X=0", "actor.spec.0.env.A=2"),
    one("override with an interpolation that is broken", BASE, "a='${b'"),
    one("integer keys", "a: {1: x}", "a.1=y"),
    # defaults lists
    many("group", GROUPS),
    many("group chosen", GROUPS, "db=postgres"),
    many("group chosen, value too", GROUPS, "db=postgres", "db.port=1"),
    many("group value first", GROUPS, "db.port=1", "db=postgres"),
    many("unknown option", GROUPS, "db=oracle"),
    many("group as a map", GROUPS, "db={port:5}"),
    many("group as a number", GROUPS, "db=5"),
    many("group deleted", GROUPS, "~db"),
    many("group deleted by option", GROUPS, "~db=mysql"),
    many("group deleted by another option", GROUPS, "~db=postgres"),
    many("group added twice", GROUPS, "+db=postgres"),
    many("group added", {**GROUPS, "main.yaml": "port: 1\n"}, "+db=postgres"),
    many("group not added", {**GROUPS, "main.yaml": "port: 1\n"}, "db=postgres"),
    many("group forced", GROUPS, "++db=postgres"),
    many("group in a package", {**GROUPS, "main.yaml": "defaults: [db@store: mysql, db@backup: postgres]\n"}),
    many(
        "group in a package chosen",
        {**GROUPS, "main.yaml": "defaults: [db@store: mysql, db@backup: mysql]\n"},
        "db@backup=postgres",
    ),
    many(
        "group in the wrong package", {**GROUPS, "main.yaml": "defaults: [db@store: mysql, db@backup: mysql]\n"}, "db@x=postgres"
    ),
    many("group without its package", {**GROUPS, "main.yaml": "defaults: [db@store: mysql]\n"}, "db=postgres"),
    many("group added in a package", GROUPS, "+db@backup=postgres"),
    many("group in the global package", {**GROUPS, "main.yaml": "defaults: [db@_global_: mysql, _self_]\nport: 1\n"}),
    many("several options", {**GROUPS, "main.yaml": "defaults: [{db: [mysql, postgres]}]\n"}),
    many("several options chosen", GROUPS, "db=[postgres,mysql]"),
    many("null option", {**GROUPS, "main.yaml": "defaults: [db: null, _self_]\nport: 1\n"}),
    many("null option chosen", {**GROUPS, "main.yaml": "defaults: [db: null]\n"}, "db=mysql"),
    many("group chosen null", GROUPS, "db=null"),
    many("missing option", {**GROUPS, "main.yaml": "defaults: [db: '???']\n"}),
    many("missing option chosen", {**GROUPS, "main.yaml": "defaults: [db: '???']\n"}, "db=mysql"),
    many("optional", {**GROUPS, "main.yaml": "defaults: [optional db: nope, optional cache: x, _self_]\na: 1\n"}),
    many("not optional", {**GROUPS, "main.yaml": "defaults: [cache: x]\na: 1\n"}),
    many("self last", {"main.yaml": "defaults: [base, _self_]\na: 2\n", "base.yaml": "a: 1\nb: 1\n"}),
    many("self first", {"main.yaml": "defaults: [_self_, base]\na: 2\n", "base.yaml": "a: 1\nb: 1\n"}),
    many("no self", {"main.yaml": "defaults: [base]\na: 2\n", "base.yaml": "a: 1\nb: 1\n"}),
    many(
        "self in the middle",
        {"main.yaml": "defaults: [x, _self_, y]\na: 2\nb: 2\n", "x.yaml": "a: 1\nb: 1\nc: 1\n", "y.yaml": "b: 3\n"},
    ),
    many("self twice", {"main.yaml": "defaults: [_self_, base, _self_]\na: 2\n", "base.yaml": "a: 1\n"}),
    many("empty defaults", {"main.yaml": "defaults: []\na: 2\n"}),
    many("defaults are a map", {"main.yaml": "defaults: {a: b}\na: 2\n"}),
    many("default of two keys", {"main.yaml": "defaults: [{a: b, c: d}]\n"}),
    many("default is a number", {"main.yaml": "defaults: [5]\n"}),
    many("option is a number", {"main.yaml": "defaults: [{db: 5}]\n", "db/5.yaml": "a: 1\n"}),
    many("defaults below", {"main.yaml": "a: {defaults: [x]}\n"}),
    many(
        "parent folder",
        {
            "math/base.yaml": "a: 1\nb: {c: 1}\n",
            "dte/main.yaml": "defaults:\n  - ../math/base@_global_\n  - _self_\n\nb: {d: 2}\n",
        },
        config="dte/main.yaml",
    ),
    many(
        "parent folder without package",
        {"math/base.yaml": "a: 1\n", "dte/main.yaml": "defaults:\n  - ../math/base\n  - _self_\n\nb: {d: 2}\n"},
        config="dte/main.yaml",
    ),
    many(
        "parent folder, override",
        {
            "math/base.yaml": "a: 1\nb: {c: 1}\n",
            "dte/main.yaml": "defaults:\n  - ../math/base@_global_\n  - _self_\n\nb: {d: 2}\n",
        },
        "b.c=5",
        "b.d=6",
        config="dte/main.yaml",
    ),
    many(
        "chain",
        {
            "main.yaml": "defaults: [x, _self_]\nc: 3\n",
            "x.yaml": "defaults: [y, _self_]\nb: 2\nc: 2\n",
            "y.yaml": "a: 1\nb: 1\nc: 1\n",
        },
    ),
    many(
        "circle",
        {"main.yaml": "defaults: [x]\n", "x.yaml": "defaults: [main]\n"},
        because="Python's recursion ends it; here the circle is found",
        ours={"error": "circle"},
    ),
    many("missing file", {"main.yaml": "defaults: [nope]\n"}),
    many("missing primary", {"other.yaml": "a: 1\n"}),
    many("header", {"main.yaml": "defaults: [db: mysql]\n", "db/mysql.yaml": "# @package _global_\nport: 1\n"}),
    many("header with a package", {"main.yaml": "defaults: [db: mysql]\n", "db/mysql.yaml": "# @package store.main\nport: 1\n"}),
    many(
        "header against the list", {"main.yaml": "defaults: [db@x: mysql]\n", "db/mysql.yaml": "# @package _global_\nport: 1\n"}
    ),
    many("header of group", {"main.yaml": "defaults: [db: mysql]\n", "db/mysql.yaml": "# @package _group_\nport: 1\n"}),
    many(
        "header behind a comment",
        {"main.yaml": "defaults: [db: mysql]\n", "db/mysql.yaml": "# words\n# @package _global_\nport: 1\n"},
    ),
    many(
        "header behind a blank line",
        {"main.yaml": "defaults: [db: mysql]\n", "db/mysql.yaml": "\n# @package _global_\nport: 1\n"},
    ),
    many("header that is broken", {"main.yaml": "defaults: [db: mysql]\n", "db/mysql.yaml": "# @package\nport: 1\n"}),
    many(
        "package here",
        {"main.yaml": "defaults: [x/base]\n", "x/base.yaml": "defaults: [part@_here_, _self_]\na: 1\n", "x/part.yaml": "b: 1\n"},
    ),
    many("package of group", {"main.yaml": "defaults: [db@_group_.y: mysql]\n", "db/mysql.yaml": "port: 1\n"}),
    many(
        "nested packages",
        {"main.yaml": "defaults: [x: base]\n", "x/base.yaml": "defaults: [y@z: part, _self_]\na: 1\n", "x/y/part.yaml": "b: 1\n"},
    ),
    many(
        "absolute group",
        {
            "main.yaml": "defaults: [x: base]\n",
            "x/base.yaml": "defaults: [/db: mysql, _self_]\na: 1\n",
            "db/mysql.yaml": "port: 1\n",
        },
    ),
    many(
        "absolute group, global",
        {
            "main.yaml": "defaults: [x: base]\n",
            "x/base.yaml": "defaults: [/db@_global_.store: mysql, _self_]\na: 1\n",
            "db/mysql.yaml": "port: 1\n",
        },
    ),
    many(
        "relative group",
        {
            "main.yaml": "defaults: [x: base]\n",
            "x/base.yaml": "defaults: [db: mysql, _self_]\na: 1\n",
            "x/db/mysql.yaml": "port: 1\n",
        },
    ),
    many("config in a group", {"main.yaml": "defaults: [db/mysql, _self_]\n", "db/mysql.yaml": "port: 1\n"}),
    many(
        "override in the list",
        {**GROUPS, "main.yaml": "defaults: [base, override db: postgres]\n", "base.yaml": "defaults: [db: mysql]\n"},
    ),
    many(
        "override below wins over nothing",
        {**GROUPS, "main.yaml": "defaults: [base, override db: postgres]\n", "base.yaml": "defaults: [db: mysql]\n"},
        "db=mysql",
    ),
    many("override of nothing", {**GROUPS, "main.yaml": "defaults: [override db: postgres]\n"}),
    many("override before a default", {**GROUPS, "main.yaml": "defaults: [override db: postgres, db: mysql]\n"}),
    many(
        "override in a group",
        {
            "main.yaml": "defaults: [x: base, override x/y: two]\n",
            "x/base.yaml": "defaults: [y: one]\n",
            "x/y/one.yaml": "a: 1\n",
            "x/y/two.yaml": "a: 2\n",
        },
    ),
    many(
        "group of a group chosen",
        {
            "main.yaml": "defaults: [x: base]\n",
            "x/base.yaml": "defaults: [y: one]\n",
            "x/y/one.yaml": "a: 1\n",
            "x/y/two.yaml": "a: 2\n",
        },
        "x/y=two",
    ),
    many("same group twice", {**GROUPS, "main.yaml": "defaults: [db: mysql, db: postgres]\n"}),
    many("same group twice, same option", {**GROUPS, "main.yaml": "defaults: [db: mysql, db: mysql]\n"}),
    many("same config twice", {"main.yaml": "defaults: [x, x]\n", "x.yaml": "a: 1\n"}),
    many("engine", ENGINES),
    many("engine chosen", ENGINES, "model_engine=megatron"),
    many("engine chosen, values too", ENGINES, "model_engine=megatron", "role.actor.megatron.tp=4"),
    many("engine not chosen, its key", ENGINES, "role.actor.megatron.tp=4"),
    many("engine chosen in the wrong place", ENGINES, "role.actor.model_engine=megatron"),
    many("engine unknown", ENGINES, "model_engine=veomni"),
    many("actor chosen", ENGINES, "actor@role.actor=megatron_actor"),
    many("link of an option to nothing", {"main.yaml": "defaults: [db: '${nope}']\n", "db/mysql.yaml": "a: 1\n"}),
    many(
        "link of a config",
        {"main.yaml": "defaults: [db: mysql, 'x/${db}']\n", "db/mysql.yaml": "a: 1\n", "x/mysql.yaml": "b: 1\n"},
    ),
    many(
        "link to a list item",
        {"main.yaml": "defaults: [db: mysql, x: '${defaults.0.db}']\n", "db/mysql.yaml": "a: 1\n", "x/mysql.yaml": "b: 1\n"},
    ),
    many(
        "searchpath",
        {"main.yaml": "hydra: {searchpath: ['file://lib']}\ndefaults: [base, _self_]\na: 2\n", "lib/base.yaml": "a: 1\nb: 1\n"},
    ),
    many(
        "searchpath without scheme",
        {"main.yaml": "hydra: {searchpath: [lib]}\ndefaults: [base, _self_]\na: 2\n", "lib/base.yaml": "a: 1\nb: 1\n"},
    ),
    many("searchpath not there", {"main.yaml": "hydra: {searchpath: ['file://nope']}\na: 2\n"}),
    many("searchpath typed", {"main.yaml": "defaults: [base]\n", "lib/base.yaml": "a: 1\n"}, "hydra.searchpath=[file://lib]"),
    many("searchpath is a text", {"main.yaml": "hydra: {searchpath: lib}\na: 2\n"}),
    many("searchpath elsewhere", {"main.yaml": "defaults: [base]\n", "base.yaml": "a: 1\nhydra: {searchpath: [x]}\n"}),
    many(
        "searchpath, first wins",
        {"main.yaml": "hydra: {searchpath: [lib]}\ndefaults: [base]\n", "base.yaml": "a: 1\n", "lib/base.yaml": "a: 2\n"},
    ),
    many(
        "searchpath, group in both",
        {**GROUPS, "main.yaml": "hydra: {searchpath: [lib]}\ndefaults: [db: other]\n", "lib/db/other.yaml": "host: o\n"},
        "db.host=x",
    ),
    many("hydra groups", {"main.yaml": "defaults: [_self_, override hydra/job_logging: none]\na: 1\n"}),
    # merging files
    many("maps merge", {"main.yaml": "defaults: [x, _self_]\na: {b: 2, c: {e: 1}}\n", "x.yaml": "a: {b: 1, c: {d: 1}, f: 1}\n"}),
    many("lists replace", {"main.yaml": "defaults: [x, _self_]\na: [3]\n", "x.yaml": "a: [1, 2]\n"}),
    many(
        "a map over a value",
        {"main.yaml": "defaults: [x, _self_]\na: {b: 1}\nc: 5\nd: {e: 1}\n", "x.yaml": "a: 1\nc: {d: 1}\nd: null\n"},
    ),
    many("a list over a map", {"main.yaml": "defaults: [x, _self_]\na: [1]\n", "x.yaml": "a: {b: 1}\n"}),
    many("a map over a list", {"main.yaml": "defaults: [x, _self_]\na: {b: 1}\n", "x.yaml": "a: [1]\n"}),
    many("null over a map", {"main.yaml": "defaults: [x, _self_]\na: null\nb: null\n", "x.yaml": "a: {b: 1}\nb: [1]\n"}),
    many("missing over a value", {"main.yaml": "defaults: [x, _self_]\na: ???\nb: ???\n", "x.yaml": "a: 1\nb: {c: 1}\n"}),
    many("a value over missing", {"main.yaml": "defaults: [x, _self_]\na: 1\nb: {c: 1}\n", "x.yaml": "a: ???\nb: ???\n"}),
    many("a map over a link", {"main.yaml": "defaults: [x, _self_]\nb: {y: 3}\n", "x.yaml": "a: {x: 1, y: 2}\nb: ${a}\n"}),
    many("a value over a link", {"main.yaml": "defaults: [x, _self_]\nb: 5\n", "x.yaml": "a: {x: 1, y: 2}\nb: ${a}\n"}),
    many("missing over a link", {"main.yaml": "defaults: [x, _self_]\nb: ???\n", "x.yaml": "a: {x: 1, y: 2}\nb: ${a}\n"}),
    many("a list over a link to a list", {"main.yaml": "defaults: [x, _self_]\nb: [3]\n", "x.yaml": "a: [1, 2]\nb: ${a}\n"}),
    many("a map over a link to a value", {"main.yaml": "defaults: [x, _self_]\nb: {y: 3}\n", "x.yaml": "a: 1\nb: ${a}\n"}),
    many(
        "a map over a link to later", {"main.yaml": "defaults: [x, _self_]\na: {x: 1, y: 2}\nb: {y: 3}\n", "x.yaml": "b: ${a}\n"}
    ),
    many("a link over a map", {"main.yaml": "defaults: [x, _self_]\na: {x: 1}\nb: ${a}\n", "x.yaml": "b: {y: 2}\n"}),
    many("links see the end", {"main.yaml": "defaults: [x, _self_]\na: 2\n", "x.yaml": "a: 1\nb: ${a}\n"}, "a=3"),
    many(
        "one config twice, changed between",
        {"main.yaml": "defaults: [base, _self_, /base]\na: {x: 2}\n", "base.yaml": "a: {x: 1}\n"},
        ours={"a": {"x": "int 1"}},
        because="Hydra merges into the object that it keeps for the file, so that the second copy holds the change",
    ),
    # as the frameworks' files and launch commands have them
    many("verl: keys of an engine that was not chosen", ENGINES, "role.actor.model_engine=megatron", "role.actor.megatron.tp=2"),
    many(
        "verl: + on a key that exists, none on one that does not",
        ENGINES,
        "+role.actor.mini=64",
        "role.actor.kwargs.backend=triton",
    ),
    one("verl: + on a key that is null", "t: {recompute_method: null}", "+t.recompute_method=uniform"),
    one(
        "verl: values as they are typed",
        "l: [x]\na: 1\nb: 1\nc: 1\nd: 1",
        'l=["console","wandb"]',
        "a=null",
        "b=True",
        "c=1.",
        "d=[1,2]",
    ),
    one("verl: a lone blank as an argument", "a: 1", " "),
    one(
        "verl: defaults that are links",
        "actor: {max: 24576, ulysses: 4, megatron: {tp: 4}}\nref: {max: '${oc.select:actor.max,16384}', megatron: {tp: '${oc.select:actor.megatron.tp,1}'}}\ncritic: {max: 32768, forward: '${.max}', megatron: {tp: 1}}",
        "actor.max=8192",
        "actor.megatron.tp=8",
        "critic.max=1000",
    ),
    one(
        "verl: two keys of one meaning stay two keys",
        "actor: {strategy: fsdp, fsdp_config: {strategy: fsdp}}\nrollout: {nnodes: 1}\nactor_rollout_ref: {rollout: {nnodes: 1}}",
        "actor.fsdp_config.strategy=fsdp2",
        "rollout.nnodes=2",
    ),
    many(
        "areal: a file that inherits",
        {
            "math/base.yaml": "seed: 1\ncluster: {n_nodes: 1, n_gpus_per_node: 8}\nactor: {backend: 'megatron:d4t2', path: q, scheduling_spec: [{gpu: 1, port: 2, env_vars: {}}]}\nref: {path: '${actor.path}', scheduling_spec: '${actor.scheduling_spec}'}\n",
            "dte/main.yaml": "defaults:\n  - ../math/base@_global_\n  - _self_\n\nactor: {path: moe}\nref: {backend: '${actor.backend}'}\n",
        },
        "+actor.scheduling_spec.0.env_vars.X=0",
        "cluster.n_nodes=4",
        config="dte/main.yaml",
    ),
    one(
        "areal: keys of a script's own class stay",
        "econfig: {domain: telecom, turns: 5}\nworkflow: areal.x\nlauncher: {a: 1}\nactor: {behave_imp_weight_cap: 5.0}",
    ),
    one("areal: a key of the class that the file does not have", "actor: {path: q}", "actor.dtype=float32"),
    one(
        "areal: a backend with brackets is quoted",
        "actor: {backend: 'fsdp:d4'}",
        "actor.backend='megatron:(attn:d4p1t4c2|ffn:d4p1e8)'",
    ),
    one(
        "areal: a backend with brackets is not quoted",
        "actor: {backend: 'fsdp:d4'}",
        "actor.backend=megatron:(attn:d4p1t4c2|ffn:d4p1e8)",
    ),
    one(
        "oumi: bash in a block of text",
        "run: |\n  set -e\n  x --model.model_max_length 512\nresources: {accelerators: 'A100-80GB:8'}\nmax: 32_768\nlr: 2e-05\non: true",
    ),
]

DOTLIST: list[dict[str, Any]] = [
    {"name": "values", "text": BASE, "arguments": ["a=5", "b.c=1e-6", "s=yes", "x.y=[1, 2]", "n={a: 1}", "q=", "r", "b.d=[]"]},
    {"name": "typing", "text": "a: 1", "arguments": ["a=010", "b=1:30", "c=32_768", "d='1'", "e=null", "f=x=y", "g=a: 1", "h=~"]},
    {"name": "brackets", "text": "a: {b: {c: 1}}", "arguments": ["a[b].c=2", "a.b.d=3", "[x].y=1"]},
    {"name": "list index", "text": "a: [1, 2]", "arguments": ["a.0=5"]},
    {"name": "links", "text": "a: {x: 1}\nb: ${a}\nc: ${a.x}", "arguments": ["b.x=2", "a.x=7"]},
    {"name": "last wins", "text": "a: 1", "arguments": ["a=2", "a=3", "b.c=1", "b=2", "b.d=3"]},
    {"name": "a broken value", "text": "a: 1", "arguments": ["a=[1"]},
    {"name": "a broken link", "text": "a: 1", "arguments": ["a=${b"]},
    {"name": "escaped", "text": "a: 'x\\${y}'\nb: ${oc.env:OOM_Z,1}", "arguments": []},
    {
        "name": "oumi: links are escaped and stay text",
        "text": "run: 'x --batch \\${PER_DEVICE_BATCH_SIZE}'\nmodel: {name: a}\ntraining: {lr: 1e-5}",
        "arguments": ["training.lr=2e-05", "training.max_steps=1_000", "model.name=b"],
    },
]
