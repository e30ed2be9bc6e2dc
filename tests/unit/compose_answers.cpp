// What a composition says beside the values: where each stands, how it came there, and what is wrong, all at once.
#include <doctest/doctest.h>

#include <chrono>

#include "frontends/compose/launch.hpp"

using namespace oomplan;
using namespace oomplan::compose;

namespace {

Composed composed(std::map<std::string, std::string> files, std::vector<std::string> overrides = {},
                  Environment environment = {}) {
  Request request;
  request.config = "main";
  request.overrides = std::move(overrides);
  request.files = in_memory(std::move(files));
  request.environment = std::move(environment);
  return compose::compose(request);
}

std::string all(const std::vector<Problem>& problems) {
  std::string out;
  for (const auto& problem : problems) out += to_text(problem) + "\n";
  return out;
}

std::string place(const Node& node) {
  const Place& p = node.origin.place;
  return p.file + ":" + std::to_string(p.line) + ":" + std::to_string(p.column) + " " + p.path;
}

}  // namespace

TEST_CASE("compose: every value knows the literal that it came from") {
  const Composed c = composed(
      {{"main.yaml", "defaults: [base, _self_]\nactor:\n  lr: 1e-6\n  path: ${model}\nref: {path: '${actor.path}'}\n"},
       {"base.yaml", "# a comment\nmodel: qwen\nactor:\n  dtype: bfloat16\n  lr: 1\nmerged: {<<: &x {k: 1}}\nagain: *x\n"}},
      {"+actor.steps=[1,2]"});
  REQUIRE(all(c.problems) == "");
  const Node root = resolve(c.root, {}).root;
  CHECK(place(*root.at("actor.lr")) == "main.yaml:3:7 actor.lr");
  CHECK(place(*root.at("actor.dtype")) == "base.yaml:4:10 actor.dtype");
  CHECK(place(*root.at("merged.k")) == "base.yaml:6:21 merged.k");
  CHECK(place(*root.at("again.k")) == "base.yaml:6:21 again.k");
  CHECK(root.at("actor.lr")->origin.kind == Origin::Kind::file);
  CHECK(root.at("actor.lr")->via.empty());

  const Node& path = *root.at("ref.path");
  CHECK(path.text == "qwen");
  CHECK(place(path) == "base.yaml:2:8 model");
  REQUIRE(path.via.size() == 2);
  CHECK(path.via[0].key == "actor.path");
  CHECK(path.via[0].place.line == 5);
  CHECK(path.via[1].key == "model");
  CHECK(path.via[1].place.line == 4);

  const Node& step = *root.at("actor.steps.1");
  CHECK(step.integer == 2);
  CHECK(step.origin.kind == Origin::Kind::override_);
  CHECK(step.origin.place.file == "command line");
  CHECK(step.origin.because == "+actor.steps=[1,2]");
  CHECK(c.files == std::vector<std::string>{"main.yaml", "base.yaml"});
}

TEST_CASE("compose: problems are told all at once, each with its place") {
  const Composed c = composed({{"main.yaml", "actor: {lr: 1, path: q}\na: ${b\nseed: 1\n"}},
                              {"actor.lt=2", "+seed=2", "seed=<x>", "seed=1,2", "~nope", "seed=choice(1,2)", "a@b=1", "sed=1"});
  CHECK(
      all(c.problems) ==
      "command line seed=<x>: found '<', expected a quoted value: key='...': Hydra's override grammar does not allow this "
      "character "
      "at position 6\n"
      "command line seed=1,2: found a sweep over several values, expected one value: [a,b] for a list, quotes for a text with "
      "commas: Hydra takes this for a sweep, which needs --multirun; a job has one value\n"
      "command line seed=choice(1,2): found a sweep over several values, expected one value: [a,b] for a list, quotes for a text "
      "with commas: Hydra takes this for a sweep, which needs --multirun; a job has one value\n"
      "main.yaml:2:4 a: found '${b', expected an interpolation: ${key}, ${.key} or ${resolver:...}: it ends too early, at "
      "position "
      "4\n"
      "command line actor.lt: found an unknown key, expected a key that is in the configuration (did you mean 'actor.lr'?): "
      "Hydra's "
      "struct mode sets only keys that exist; +actor.lt adds it\n"
      "command line seed: found '+seed=2', expected a key that is not there yet (did you mean 'seed=2'?): an item is at 'seed' "
      "already; ++ adds or overrides\n"
      "command line nope: found '~nope', expected a key with a value: Hydra deletes only what is there and not null\n"
      "command line a: found 'a@b=1', expected a config group before '@': there is no config group 'a'\n"
      "command line sed: found an unknown key, expected a key that is in the configuration (did you mean 'seed'?): Hydra's "
      "struct "
      "mode sets only keys that exist; +sed adds it\n");
}

TEST_CASE("compose: a group chosen in the wrong place is told as such") {
  const std::map<std::string, std::string> files{{"main.yaml", "defaults: [model_engine: dp, _self_]\nactor: {lr: 1}\n"},
                                                 {"model_engine/dp.yaml", "a: 1\n"},
                                                 {"model_engine/megatron.yaml", "b: 1\n"}};
  const Composed wrong = composed(files, {"actor.model_engine=megatron"});
  REQUIRE(wrong.problems.size() == 1);
  CHECK(wrong.problems[0].nearest == "model_engine=megatron");
  CHECK(wrong.problems[0].place.path == "actor.model_engine");

  const Composed unknown = composed(files, {"model_engine=megatro"});
  REQUIRE(unknown.problems.size() == 1);
  CHECK(all(unknown.problems) ==
        "command line model_engine: found 'megatro', expected dp or megatron (did you mean 'megatron'?): in 'main': Hydra could "
        "not "
        "find 'model_engine/megatro.yaml' in .\n");
  CHECK(composed(files, {"model_engine=megatron"}).choices.at("model_engine") == "megatron");
}

TEST_CASE("compose: a key that stands elsewhere is named") {
  const Composed c =
      composed({{"main.yaml", "actor: {optimizer: {lr_scheduler_type: cosine}}\nref: {x: 1}\n"}}, {"ref.lr_scheduler_type=x"});
  REQUIRE(c.problems.size() == 1);
  CHECK(c.problems[0].nearest == "actor.optimizer.lr_scheduler_type");
}

TEST_CASE("compose: an unset environment variable makes a value unknown, not wrong") {
  const Composed c =
      composed({{"main.yaml", "key: ${oc.env:KEY}\nurl: 'x/${key}'\nn: ${oc.decode:${oc.env:N,8}}\nt: ${now:%H}\n"}});
  const Resolved unset = resolve(c.root, {});
  CHECK(all(unset.problems) == "");
  CHECK(unset.root.at("key")->kind == Node::Kind::unknown);
  CHECK(unset.root.at("key")->text == "environment KEY");
  CHECK(unset.root.at("url")->text == "environment KEY");
  CHECK(unset.root.at("n")->integer == 8);
  CHECK(unset.root.at("t")->text == "now, known at launch");
  const Resolved set = resolve(c.root, {{"KEY", "7"}, {"N", "16"}});
  CHECK(set.root.at("url")->text == "x/7");
  CHECK(set.root.at("n")->integer == 16);
}

TEST_CASE("compose: the environment of the process is not read") {
  const Composed c = composed({{"main.yaml", "a: ${oc.env:PATH}\n"}});
  CHECK(resolve(c.root, {}).root.at("a")->kind == Node::Kind::unknown);
}

TEST_CASE("compose: defaults of the framework's classes go under the tree, and links see them") {
  const Composed c = composed({{"main.yaml", "actor: {path: q}\nref: {dtype: '${actor.dtype}'}\n"}});
  Node under;
  under.kind = Node::Kind::map;
  Node actor = under;
  actor.entries.push_back(
      {"dtype", Node::Kind::text, {}, text_node("bfloat16", {Origin::Kind::default_, {}, "AReaL 1.0.4 default", {}})});
  actor.entries.push_back({"path", Node::Kind::text, {}, text_node("")});
  under.entries.push_back({"actor", Node::Kind::text, {}, std::move(actor)});
  std::vector<Problem> problems;
  const Resolved r = resolve(merge_over(std::move(under), c.root, {}, problems), {});
  CHECK(all(problems) + all(r.problems) == "");
  CHECK(r.root.at("ref.dtype")->text == "bfloat16");
  CHECK(r.root.at("ref.dtype")->origin.because == "AReaL 1.0.4 default");
  CHECK(r.root.at("actor.path")->text == "q");
}

TEST_CASE("compose: AReaL's entry: --config FILE overrides") {
  const Launch launch =
      read_launch({"examples/math/gsm8k_rl.py", "--config", "examples/math/grpo.yaml", "actor.lr=2", "+actor.x=1", "--foo"});
  CHECK(launch.config_file == "examples/math/grpo.yaml");
  CHECK(launch.overrides == std::vector<std::string>{"actor.lr=2", "+actor.x=1", "--foo"});
  CHECK(read_launch({"--config=a.yaml"}).config_file == "a.yaml");
  CHECK(read_launch({"a=1", "--conf", "a.yaml"}).overrides == std::vector<std::string>{"a=1"});
  CHECK_THROWS_AS(read_launch({"a=1"}), InputError);
  CHECK_THROWS_AS(read_launch({"--config"}), InputError);

  const Files files = in_memory({{"examples/math/grpo.yaml", "actor: {lr: 1}\n"}, {"examples/math/old.yml", "a: 1\n"}});
  const Composed c = compose::compose(request_of(read_launch({"--config", "examples/math/grpo.yaml", "actor.lr=2"}), files, {}));
  CHECK(all(c.problems) == "");
  CHECK(c.root.at("actor.lr")->integer == 2);
  const Composed yml = compose::compose(request_of(read_launch({"--config", "examples/math/old.yml"}), files, {}));
  CHECK(all(yml.problems) ==
        "examples/math/old.yml.yaml: found no such file, expected the primary config: Hydra looks for 'old.yml.yaml' (only "
        ".yaml)\n");
  const Composed foo = compose::compose(request_of(read_launch({"--config", "examples/math/grpo.yaml", "--foo"}), files, {}));
  CHECK(foo.problems.size() == 1);
}

TEST_CASE("compose: only the given function opens files, and folders need not be listed") {
  std::vector<std::string> asked;
  Request request;
  request.folder = "/conf";
  request.config = "main";
  request.overrides = {"db=postgres"};
  request.files.read = [&](const std::string& path) -> std::optional<std::string> {
    asked.push_back(path);
    if (path == "/conf/main.yaml") return "defaults: [db: mysql]\n";
    if (path == "/conf/db/postgres.yaml") return "port: 5432\n";
    return std::nullopt;
  };
  const Composed c = compose::compose(request);
  CHECK(all(c.problems) == "");
  CHECK(c.root.at("db.port")->integer == 5432);
  for (const auto& path : asked) CHECK(path.starts_with("/conf/"));
}

TEST_CASE("compose: search paths: file, the working folder, packages, and what is not there") {
  Request request;
  request.folder = "conf";
  request.config = "main";
  request.working_folder = "/repo";
  request.files = in_memory(
      {{"conf/main.yaml", "hydra: {searchpath: ['file://lib', 'pkg://verl.config', 'gs://x', nope]}\ndefaults: [a, b, c]\n"},
       {"/repo/lib/a.yaml", "a: 1\n"},
       {"pkg://verl.config/b.yaml", "b: 1\n"},
       {"more/c.yaml", "c: 1\n"}});
  request.search = {"more"};
  const Composed c = compose::compose(request);
  CHECK(all(c.problems) == "");
  CHECK(c.root.at("a")->integer == 1);
  CHECK(c.root.at("b")->integer == 1);
  CHECK(c.root.at("c")->integer == 1);
  CHECK(c.root.find("hydra") == nullptr);
  CHECK(all(c.warnings) ==
        "conf/main.yaml:1:57: found 'gs://x', expected file:// or pkg:// and a folder: it is not looked into\n"
        "conf/main.yaml:1:67: found 'nope', expected a folder that exists: Hydra goes on without it\n");
}

TEST_CASE("compose: Hydra's own overrides are set aside") {
  const Composed c = composed({{"main.yaml", "a: 1\n"}}, {"hydra.run.dir=x", "hydra/launcher=y", "a=2"});
  CHECK(all(c.problems) == "");
  CHECK(c.set_aside == std::vector<std::string>{"hydra.run.dir=x", "hydra/launcher=y"});
}

TEST_CASE("compose: circles of defaults lists are found") {
  const Composed c = composed({{"main.yaml", "defaults: [x]\n"}, {"x.yaml", "defaults: [main]\n"}});
  REQUIRE(c.problems.size() == 1);
  CHECK(c.problems[0].why.find("in a circle") != std::string::npos);
  std::string many = "defaults: [";
  for (int i = 0; i < 8; ++i) many += "x@p" + std::to_string(i) + ", ";
  CHECK_FALSE(composed({{"main.yaml", many + "_self_]\n"}, {"x.yaml", many + "_self_]\n"}}).problems.empty());
}

TEST_CASE("compose: interpolations cannot grow beyond bounds") {
  const auto started = std::chrono::steady_clock::now();
  std::string lists = "l0: [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n", words = "t0: aaaaaaaaaa\n", empty = "e0: ''\n", chain = "c0: 1\n";
  for (int i = 1; i < 30; ++i) {
    const auto grown = [&](const std::string& name, const std::string& between) {
      std::string out;
      for (int k = 0; k < 10; ++k) out += (k == 0 ? "" : between) + ("${" + name + std::to_string(i - 1) + "}");
      return out;
    };
    const std::string n = std::to_string(i);
    lists += "l" + n + ": ['" + grown("l", "', '") + "']\n";
    words += "t" + n + ": " + grown("t", "") + "\n";
    empty += "e" + n + ": " + grown("e", "") + "\n";
  }
  for (int i = 1; i < 4000; ++i) chain += "c" + std::to_string(i) + ": ${c" + std::to_string(i - 1) + "}\n";
  CHECK_FALSE(resolve(composed({{"main.yaml", lists}}).root, {}).problems.empty());
  CHECK_FALSE(resolve(composed({{"main.yaml", words}}).root, {}).problems.empty());
  const Resolved nothing = resolve(composed({{"main.yaml", empty}}).root, {});
  CHECK(nothing.problems.empty());
  CHECK(nothing.root.at("e29")->text.empty());
  CHECK(resolve(composed({{"main.yaml", chain}}).root, {}).root.at("c10")->integer == 1);

  std::string deep(200, '['), link = "a: ", call = "a: ", maps;
  for (int i = 0; i < 500; ++i) {
    link += "${";
    call += "${oc.create:[";
    maps += "{a: ";
  }
  for (const auto& text : {"a: " + deep, link, call, "a: " + maps}) CHECK_FALSE(composed({{"main.yaml", text}}).problems.empty());
  CHECK_FALSE(composed({{"main.yaml", "a: 1"}}, {"a=" + std::string(5000, '[')}).problems.empty());
  CHECK_FALSE(composed({{"main.yaml", "a: 1"}}, {"a=" + std::string(100'000, 'x')}).problems.empty());
  std::string dots = "+a";
  for (int i = 0; i < 500; ++i) dots += ".a";
  CHECK_FALSE(composed({{"main.yaml", "b: 1"}}, {dots + "=1"}).problems.empty());
  std::string nested;
  for (int i = 0; i < 200; ++i) {
    const std::string open(10, '['), close(10, ']');
    nested += "n" + std::to_string(i) + ": \"${oc.create:" + open + "${n" + std::to_string(i + 1) + "}" + close + "}\"\n";
  }
  CHECK_FALSE(resolve(composed({{"main.yaml", nested + "n200: 1\n"}}).root, {}).problems.empty());
  CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(20));
}
