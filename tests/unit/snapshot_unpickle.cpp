// The reader of pickles: plain data in every protocol, a refusal by name for all else, and an answer for any bytes.
#include <doctest/doctest.h>

#include <random>

#include <oomplan/units/errors.hpp>

#include "snapshot/unpickle.hpp"

using namespace oomplan;
using namespace oomplan::snapshot;
using namespace std::string_literals;

namespace {

/// Python's repr of a value; REQUIRES: it does not contain itself.
std::string repr(const Values& v, Ref ref) {
  const auto all = [&](const char* open, const char* close, bool pairs) {
    std::string out = open;
    const auto& items = v.items(ref);
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += pairs && i % 2 == 1 ? ": " : ", ";
      out += repr(v, items[i]);
    }
    return out + close;
  };
  switch (v.kind(ref)) {
    case Kind::none:
      return "None";
    case Kind::boolean:
      return v.integer(ref) != 0 ? "True" : "False";
    case Kind::integer:
      return std::to_string(v.integer(ref));
    case Kind::wide:
      return "wide";
    case Kind::real:
      return std::to_string(v.real(ref));
    case Kind::text:
      return "'" + std::string(v.text(ref)) + "'";
    case Kind::bytes:
      return "b'" + std::string(v.text(ref)) + "'";
    case Kind::list:
      return all("[", "]", false);
    case Kind::tuple:
      return all("(", ")", false);
    case Kind::dict:
      return all("{", "}", true);
  }
  return "";
}

std::string read(const std::string& bytes) {
  const Values values = unpickle(bytes, "s.pickle");
  return repr(values, values.root());
}
std::string refusal(const std::string& bytes) {
  try {
    return "read as " + read(bytes);
  } catch (const InputError& error) {
    return to_text(error.problems.at(0));
  }
}

// pickle.dumps({"a": [1, -2, 300, 70000, 2**40, True, None], "b": (0.5, "é"), "c": "x", "d": (1, 2, 3, 4)}, protocol),
// CPython 3.13.
const std::string kPlain =
    "{'a': [1, -2, 300, 70000, 1099511627776, True, None], 'b': (0.500000, 'é'), 'c': 'x', 'd': (1, 2, 3, 4)}";
const std::vector<std::string> kProtocols{
    "(dp0\012Va\012p1\012(lp2\012I1\012aI-2\012aI300\012aI70000\012aL1099511627776L\012aI01\012aNasVb\012p"
    "3\012(F0.5\012V\351\012p4\012tp5\012sVc\012p6\012Vx\012p7\012sVd\012p8\012(I1\012I2\012I3\012I4\012tp"
    "9\012s."s,
    "}q\000(X\001\000\000\000aq\001]q\002(K\001J\376\377\377\377M,\001Jp\021\001\000L1099511627776L\012I01"
    "\012NeX\001\000\000\000bq\003(G?\340\000\000\000\000\000\000X\002\000\000\000\303\251q\004tq\005X\001"
    "\000\000\000cq\006X\001\000\000\000xq\007X\001\000\000\000dq\010(K\001K\002K\003K\004tq\011u."s,
    "\200\002}q\000(X\001\000\000\000aq\001]q\002(K\001J\376\377\377\377M,\001Jp\021\001\000\212\006\000\000"
    "\000\000\000\001\210NeX\001\000\000\000bq\003G?\340\000\000\000\000\000\000X\002\000\000\000\303\251q"
    "\004\206q\005X\001\000\000\000cq\006X\001\000\000\000xq\007X\001\000\000\000dq\010(K\001K\002K\003K\004"
    "tq\011u."s,
    "\200\003}q\000(X\001\000\000\000aq\001]q\002(K\001J\376\377\377\377M,\001Jp\021\001\000\212\006\000\000"
    "\000\000\000\001\210NeX\001\000\000\000bq\003G?\340\000\000\000\000\000\000X\002\000\000\000\303\251q"
    "\004\206q\005X\001\000\000\000cq\006X\001\000\000\000xq\007X\001\000\000\000dq\010(K\001K\002K\003K\004"
    "tq\011u."s,
    "\200\004\225Q\000\000\000\000\000\000\000}\224(\214\001a\224]\224(K\001J\376\377\377\377M,\001Jp\021\001"
    "\000\212\006\000\000\000\000\000\001\210Ne\214\001b\224G?\340\000\000\000\000\000\000\214\002\303\251"
    "\224\206\224\214\001c\224\214\001x\224\214\001d\224(K\001K\002K\003K\004t\224u."s,
    "\200\005\225Q\000\000\000\000\000\000\000}\224(\214\001a\224]\224(K\001J\376\377\377\377M,\001Jp\021\001"
    "\000\212\006\000\000\000\000\000\001\210Ne\214\001b\224G?\340\000\000\000\000\000\000\214\002\303\251"
    "\224\206\224\214\001c\224\214\001x\224\214\001d\224(K\001K\002K\003K\004t\224u."s,
};

}  // namespace

TEST_CASE("pickles of protocols 0 to 5 hold the same value") {
  REQUIRE(kProtocols.size() == 6);
  for (const auto& bytes : kProtocols) CHECK(read(bytes) == kPlain);
}

TEST_CASE("single opcodes of a pickle") {
  CHECK(read("I01\n.") == "True");
  CHECK(read("I-12\n.") == "-12");
  CHECK(read("L9223372036854775807L\n.") == "9223372036854775807");
  CHECK(read("\x8a\x00."s) == "0");
  CHECK(read("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80."s) == "-9223372036854775808");
  CHECK(read("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x00."s) == "9223372036854775807");
  CHECK(read("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00."s) == "wide");
  CHECK(read("\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01."s) == "wide");
  CHECK(read("S'a\\x41\\n'\n.") == "'aA\n'");
  CHECK(read("V\\u00e9\\U0001F600\n.") == "'é😀'");
  CHECK(read("C\x02hi.") == "b'hi'");
  CHECK(read("(K\x01K\x02K\x03l.") == "[1, 2, 3]");
  CHECK(read("]q\x05K\x01"
             "ah\x05\x86.") == "([1], [1])");
  CHECK(read("K\x07(K\x08"
             "10K\x09.") == "9");
  CHECK(read("K\x07"
             "2\x86.") == "(7, 7)");
}

TEST_CASE("a pickle that could run code is refused by the opcode's name") {
  CHECK(refusal("cposix\nsystem\n(S'echo'\ntR.") ==
        "s.pickle: found the opcode GLOBAL posix.system at byte 0, expected a memory snapshot "
        "(torch.cuda.memory._dump_snapshot): a snapshot is plain data; this opcode could run code, and nothing of the file was "
        "run");
  const std::vector<std::pair<std::string, std::string>> rows{{"\x8c\x02os\x8c\x06system\x93.", "STACK_GLOBAL"},
                                                              {"N)R.", "REDUCE"},
                                                              {"N}b.", "BUILD"},
                                                              {"(ios\nsystem\n.", "INST os.system"},
                                                              {"(No.", "OBJ"},
                                                              {"N)\x81.", "NEWOBJ"},
                                                              {"N)}\x92.", "NEWOBJ_EX"},
                                                              {"Pid\n.", "PERSID"},
                                                              {"NQ.", "BINPERSID"},
                                                              {"\x82\x01.", "EXT1"},
                                                              {"\x83\x01\x01.", "EXT2"},
                                                              {"\x84\x01\x01\x01\x01.", "EXT4"},
                                                              {"\x97.", "NEXT_BUFFER"},
                                                              {"N\x98.", "READONLY_BUFFER"},
                                                              {"\x8f.", "EMPTY_SET"},
                                                              {"(\x91.", "FROZENSET"}};
  for (const auto& [bytes, opcode] : rows) {
    CAPTURE(opcode);
    CHECK(refusal(bytes).find("found the opcode " + opcode + " at byte") != std::string::npos);
  }
}

TEST_CASE("broken pickles say where") {
  const std::vector<std::pair<std::string, std::string>> rows{
      {"", "the end of the file at byte 0"},
      {"K", "the end of the file at byte 0"},
      {"K\x01", "the end of the file at byte 2"},
      {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "the end of the file at byte 0"},
      {"\x80\x09.", "pickle protocol 9 at byte 0"},
      {"\xff", "no opcode of a pickle (0xff) at byte 0"},
      {".", "STOP with 0 values"},
      {"NN.", "STOP with 2 values"},
      {"(N.", "STOP with 1 values"},
      {"a", "an opcode that needs a value"},
      {"(NN", "the end of the file"},
      {"e", "an opcode that needs a mark"},
      {"N(Ne", "items for a list behind None"},
      {"}(Nu", "a key without a value"},
      {"h\x03", "memo 3 that was never set"},
      {"Iabc\n", "a line that is no integer"},
      {"I1", "a line without an end"},
      {std::string(20'000, '('), "more than 10,000 marks at byte 10000"},
      {"\x95\xff\xff\xff\xff\x00\x00\x00\x00"s, "a frame that is longer than the file"}};
  for (const auto& [bytes, found] : rows) {
    CAPTURE(found);
    CHECK_MESSAGE(refusal(bytes).find("found " + found) != std::string::npos, refusal(bytes));
  }
}

TEST_CASE("any bytes are a value or a refusal") {
  std::mt19937 random(7);
  int read_well = 0, refused = 0;
  for (int turn = 0; turn < 60'000; ++turn) {
    std::string bytes = kProtocols[random() % kProtocols.size()];
    if (turn % 3 == 0) {
      bytes.resize(random() % 60);
      for (auto& c : bytes) c = static_cast<char>(random());
    } else {
      for (auto changes = random() % 4; changes > 0; --changes) bytes[random() % bytes.size()] = static_cast<char>(random());
      if (random() % 3 == 0) bytes.resize(random() % bytes.size());
    }
    try {
      unpickle(bytes, "s.pickle");
      ++read_well;
    } catch (const InputError& error) {
      REQUIRE(error.problems.at(0).found.find("at byte") != std::string::npos);
      ++refused;
    }
  }
  CHECK(read_well > 1'000);
  CHECK(refused > 30'000);
}
