#include <doctest/doctest.h>

#include <chrono>

#include "frontends/yaml.hpp"

using namespace oomplan;
using yaml::Node;

namespace {

std::string told(const std::string& text) {
  try {
    yaml::parse(text, "f");
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a tree of texts with places") {
  const Node root = yaml::parse("a: 1\nb: {c: '2', d: [x, ~, null]}\n", "f");
  REQUIRE(root.kind == Node::Kind::map);
  CHECK(root.find("a")->text == "1");
  CHECK_FALSE(root.find("a")->quoted);
  const Node* c = root.find("b")->find("c");
  CHECK(c->quoted);
  CHECK(c->line == 2);
  CHECK(c->column == 8);
  const Node* d = root.find("b")->find("d");
  REQUIRE(d->items.size() == 3);
  CHECK(d->items[0].kind == Node::Kind::scalar);
  CHECK(d->items[1].kind == Node::Kind::null);
  CHECK(d->items[2].kind == Node::Kind::null);
}

TEST_CASE("JSON is read as well") {
  const Node root = yaml::parse("{\"a\": 1, \"b\": {\"c\": \"x\\u0041\\n\", \"d\": [true, null]}}", "f");
  CHECK(root.find("a")->text == "1");
  CHECK(root.find("b")->find("c")->text == "xA\n");
  CHECK(root.find("b")->find("d")->items[1].kind == Node::Kind::null);
  const Node indented = yaml::parse("{\n  \"a\":\n  {\n    \"b\": 1\n  }\n}\n", "f");
  CHECK(indented.find("a")->find("b")->text == "1");
}

TEST_CASE("aliases are written out, and cannot explode") {
  const Node root = yaml::parse("a: &x {k: 1}\nb: *x\n", "f");
  CHECK(root.find("b")->find("k")->text == "1");
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 40; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last + ", " + last + ", " + last + "]\n";
  }
  const auto begin = std::chrono::steady_clock::now();
  CHECK(told(bomb).find("more than 10000 values") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
}

TEST_CASE("large and deep texts are refused quickly") {
  CHECK(told(std::string((1 << 20) + 1, 'a')).find("at most 1048576 bytes") != std::string::npos);
  for (const auto& [open, close] : {std::pair<std::string, std::string>{"[", "]"}, {"{a: ", "}"}, {"- ", ""}, {"? ", ""}}) {
    std::string deep;
    for (int i = 0; i < 100'000; ++i) deep += open;
    deep += "1";
    const auto begin = std::chrono::steady_clock::now();
    CHECK(!told(deep).empty());
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  }
  std::string many;
  for (int i = 0; i < 20'000; ++i) many += "k" + std::to_string(i) + ": 1\n";
  CHECK(told(many).find("more than 10000 values") != std::string::npos);
}

TEST_CASE("what is refused has its place") {
  CHECK(told("a: 1\na: 2\n") == "f:2:1: found the key 'a' a second time, expected every key once: it stands at 1:1 already");
  CHECK(told(std::string("a: \0", 4)) ==
        "f:1:4: found the byte 0x00, expected a text file in UTF-8: this looks like a binary file");
  CHECK(told("a: \xff\n") == "f:1:4: found the byte 0xff, expected a text file in UTF-8: the file may be in another encoding");
  CHECK(told("a: *b\n").find("f:1:") == 0);
  CHECK(told("a: 1\n--- \nb: 2\n").find("a second document") != std::string::npos);
  CHECK(told("a: !!python/object:os.system x\n").empty());  // a tag has no meaning here: the value is its text
}
