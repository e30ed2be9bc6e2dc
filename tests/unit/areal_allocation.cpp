// What AReaL's own parsers say of its strings: the accepted releases and the results were read off areal/api/alloc_mode.py,
// areal/api/io_struct.py and realhf/experiments/common/utils.py of each tag, run on these texts.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "frontends/areal/allocation.hpp"
#include "layout/dims.hpp"

using namespace oomplan;
using namespace oomplan::areal;

namespace {

/// "rollout=sglang d2 + actor=fsdp? d4 @0": letters above 1 (x: expert tensor, y: expert data where e is above 1), '?' a backend
/// that is not written, '@' the part whose GPUs are shared.
std::string shown(const Allocation& allocation) {
  std::string out;
  for (const Part& part : allocation.parts) {
    if (!out.empty()) out += " + ";
    if (!part.name.empty()) out += part.name + "=";
    out += std::string(spelling(part.backend)) + (part.backend_stated ? "" : "?");
    if (part.kind == PartKind::evaluation) continue;
    const Layout& l = part.layout;
    std::string letters;
    const auto add = [&letters](const char* letter, std::int64_t degree) {
      if (degree > 1) letters += letter + std::to_string(degree);
    };
    add("d", l.data), add("p", l.pipeline), add("t", l.tensor), add("c", l.context), add("e", l.expert),
        add("x", l.expert_tensor);
    if (l.expert > 1) letters += "y" + std::to_string(part.expert_data);
    out += " " + (letters.empty() ? std::string("d1") : letters);
    if (part.anchor) out += " @" + std::to_string(*part.anchor);
  }
  return out;
}

std::string accepted(const std::string& text) {
  std::string out;
  const auto all = acceptance(text);
  for (std::size_t i = 0; i < all.size();) {
    std::size_t end = i;
    while (end + 1 < all.size() && all[end + 1].accepted == all[i].accepted) ++end;
    if (all[i].accepted) out += (out.empty() ? "" : ", ") + range_text(all[i].first, all[end].last);
    i = end + 1;
  }
  return out;
}

AllocationRead in(const std::string& release, const std::string& text, Parser parser = Parser::current) {
  return read_allocation(text, release_named(release), parser);
}

std::string shown_in(const std::string& release, const std::string& text, Parser parser = Parser::current) {
  const AllocationRead read = in(release, text, parser);
  return read ? shown(*read.allocation) : "refused: " + read.problem.why;
}

struct Valid {
  const char* text;
  const char* accepted;
  const char* release;
  const char* parts;
  std::int64_t gpus;
};

}  // namespace

TEST_CASE("allocations of AReaL's tests, documentation and examples") {
  const Valid rows[] = {
      {"sglang:d4p2t2", "0.3.2 and later", "2.0.0+", "sglang d4p2t2", 16},
      {"sglang:d2+fsdp:d4", "0.3.2 and later", "1.0.4", "sglang d2 + fsdp d4", 6},
      {"sglang:d4p2t2+megatron:(attn:d2p2t2c2|ffn:d2p2t2e2)", "0.3.2 and later", "0.4.0",
       "sglang d4p2t2 + megatron d2p2t2c2e2x2y2", 32},
      {"fsdp:d4", "0.3.2 and later", "1.0.3", "fsdp d4", 4},
      {"megatron:d2p2t1", "0.3.2 and later", "0.4.1", "megatron d2p2", 4},
      {"vllm:d2t4+megatron:d2p2t1", "0.3.2 and later", "2.0.0", "vllm d2t4 + megatron d2p2", 12},
      {"megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)", "0.3.2 and later", "1.0.4", "megatron d4p2t2c2e2x4y2", 32},
      {"sglang:d4p1t2+megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)", "0.3.2 and later", "0.3.3",
       "sglang d4t2x2 + megatron d4p2t2c2e2x4y2", 40},
      {"sglang[rollout]:d2+fsdp[actor]:d4", "0.4.1 and later", "1.0.4", "rollout=sglang d2 + actor=fsdp d4", 6},
      {"sglang[rollout]:d2+fsdp[actor]:d4+fsdp[critic]:d4", "0.4.1 and later", "0.5.0",
       "rollout=sglang d2 + actor=fsdp d4 + critic=fsdp d4", 10},
      {"sglang[rollout]:d2+fsdp[actor]:d4|fsdp[critic]:d4", "0.4.1 and later", "1.0.4",
       "rollout=sglang d2 + actor=fsdp d4 + critic=fsdp d4 @1", 6},
      {"vllm[rollout1]:d2t2 + fsdp[actor1]:d4 + vllm[rollout2]:d4 + fsdp[actor2]:d4", "0.4.1 and later", "1.0.4",
       "rollout1=vllm d2t2 + actor1=fsdp d4 + rollout2=vllm d4 + actor2=fsdp d4", 16},
      {"sglang[rollout]:d4+[actor]:d4|megatron[critic]:d4|[ref]:t2d2|[rew]:c4", "0.4.1 to 1.0.2", "1.0.2",
       "rollout=sglang d4 + actor=fsdp? d4 + critic=megatron d4 @1 + ref=fsdp? d2t2 @1 + rew=fsdp? c4 @1", 8},
      {"vllm:d4+[actor]:d4", "0.4.1 to 1.0.2", "0.5.3", "vllm d4 + actor=fsdp? d4", 8},
      {"sglang:d4+d4", "0.3.2 to 1.0.2", "0.4.0", "sglang d4 + fsdp? d4", 8},
      {"d2p2t1", "0.3.0-lite to 1.0.2", "0.4.0", "megatron? d2p2", 4},
      {"d2p2t1", "0.3.0-lite to 1.0.2", "0.3.1", "fsdp? d2p2", 4},
      {"d2p2t4e2c4", "0.3.0-lite to 1.0.2", "0.3.4", "megatron? d2p2t4c4e2y16", 64},
      {"d2p2t4e2c4", "0.3.0-lite to 1.0.2", "0.3.3", "megatron? d2p2t4c4e2x4y4", 64},
      {"attn:d4p2t2c2|ffn:d2p2t4e2", "0.3.2 to 1.0.2", "1.0.2", "megatron? d4p2t2c2e2x4y2", 32},
      {"sglang:d4p1t1+eval", "0.3.2 to 0.5.3", "0.5.3", "sglang d4 + cpu", 4},
      {"sglang.d4p1t1+eval", "0.3.1 to 0.4.0", "0.3.1", "sglang d4 + cpu", 4},
      {"vllm.d2p2t2+d2p2t2", "0.3.0-lite to 0.4.0", "0.4.0", "vllm d2p2t2 + megatron? d2p2t2", 16},
      {"sglang.d4p2t2+(attn:d2p2t2c2|ffn:d2p2t2e2)", "0.3.1 to 0.4.0", "0.4.0", "sglang d4p2t2 + megatron? d2p2t2c2e2x2y2", 32},
      {"sglang.d96p1t1+d32p1t1", "0.3.0-lite to 0.4.0", "0.3.0-lite", "sglang d96 + fsdp? d32", 128},
      {"sglang:d4+fsdp:d2c2", "0.3.2 and later", "1.0.4", "sglang d4 + fsdp d2c2", 8},
      {"sglang:d2t2+fsdp:d4", "0.3.2 and later", "1.0.4", "sglang d2t2 + fsdp d4", 8},
      {"sglang:d4t4+megatron:(attn:d1p4t2c2|ffn:d1p4t1e4)", "0.3.2 and later", "1.0.4", "sglang d4t4 + megatron p4t2c2e4y1", 32},
      {"sglang:d4t8+megatron:(attn:d1p12t4|ffn:d1p12e4)", "0.3.4 and later", "1.0.4", "sglang d4t8 + megatron p12t4e4y1", 80},
      {"sglang:d8t4+megatron:(attn:d4p4t2|ffn:d2p4e4)", "0.3.4 and later", "1.0.4", "sglang d8t4 + megatron d4p4t2e4y2", 64},
      {"archon:(attn:d1p4t2c2|ffn:d1p4t1e4)", "1.0.0.rc1 and later", "1.0.0", "archon p4t2c2e4y1", 16},
      {"archon:d2p2e2", "1.0.0.rc1 and later", "1.0.0", "archon d2p2e2y1", 4},
      {"sglang.d4p1m1+d2p2m1", "0.1.1 to 0.3.0", "0.3.0", "sglang d4 + realhf? d2p2", 8},
      {"sglang.d8m8p1+d4p4m4", "0.1.1 to 0.3.0", "0.2.0", "sglang d8t8 + realhf? d4p4t4", 128},
      {"sglang.d80m2p1+d4m2p4", "0.1.1 to 0.3.0", "0.3.0", "sglang d80t2 + realhf? d4p4t2", 192},
      {"d4p2m1", "0.1.1 to 0.3.0", "0.1.1", "realhf? d4p2", 8},
      {"d32p1m4", "0.1.1 to 0.3.0", "0.3.0", "realhf? d32t4", 128},
      {"vllm:d32+d16", "0.3.2 to 1.0.2", "0.5.1", "vllm d32 + fsdp? d16", 48},
      {"sglang:d6+archon:d2", "0.5.2 and later", "0.5.2", "sglang d6 + archon d2", 8},
      {"megatron:(attn:d4p1t4c2|ffn:d4p1e8)", "0.3.4 and later", "1.0.4", "megatron d4t4c2e8y4", 32},
      {"sglang:d4p1t2+megatron[actor]:(attn:d4p2t2c2|ffn:d2p2t4e2)", "2.0.0+", "2.0.0+",
       "sglang d4t2 + actor=megatron d4p2t2c2e2x4y2", 40},
      {"sglang:d4|fsdp:d4", "0.3.2 to 0.4.0", "0.4.0", "sglang d4 + fsdp d4 @0", 4},
      {"fsdp:d4|fsdp[a]:d4|fsdp[b]:d4", "0.4.1 and later", "1.0.4", "fsdp d4 + a=fsdp d4 @0 + b=fsdp d4 @0", 4},
      {"fsdp:d4+sglang:d4", "0.4.1 and later", "1.0.4", "fsdp d4 + sglang d4", 8},
      {"fsdp:d4d2", "0.3.2 and later", "2.0.0+", "fsdp d2", 2},
  };
  for (const Valid& row : rows) {
    CAPTURE(row.text);
    CAPTURE(row.release);
    CHECK(accepted(row.text) == row.accepted);
    const AllocationRead read = in(row.release, row.text);
    REQUIRE(read);
    CHECK(shown(*read.allocation) == row.parts);
    CHECK(read.allocation->gpus() == row.gpus);
    CHECK(read.allocation->ignored.empty());
  }
}

TEST_CASE("allocations that AReaL refuses, with its reason") {
  struct Row {
    const char* text;
    const char* accepted;
    const char* release;
    const char* why;
    const char* nearest;
  };
  const char* bare = "a part without a backend: from 1.0.3 on each part names it, as in fsdp:d4";
  const char* bare_hybrid = "a part without a backend: from 1.0.3 on each part names it, as in megatron:(attn:d4|ffn:e4)";
  const Row rows[] = {
      {"fsdp:d4p2", "0.3.2 to 0.4.0", "1.0.4", "FSDP takes d, t and c, not p or e: here p is 2 and e is 1", ""},
      {"fsdp:d4p2", "0.3.2 to 0.4.0", "0.4.1", "FSDP takes d, t and c, not p or e: here p is 2 and e is 1", ""},
      {"fsdp:d2e2", "0.3.2 to 0.4.0", "1.0.4", "FSDP takes d, t and c, not p or e: here p is 1 and e is 2", ""},
      {"sglang:d2+fsdp[actor]:d4+fsdp:d4", "", "1.0.4", "three parts or more must all be named: 2 are not", ""},
      {"sglang[actor]:d2+fsdp[actor]:d4", "", "0.4.1", "two parts are named 'actor'", ""},
      {"fsdp:d4|fsdp:d4", "", "1.0.4", "every part behind '|' must be named", ""},
      {"(attn:d2p2t1c4|ffn:d2p4t1e2)", "", "1.0.4", "the pipeline degrees differ: p2 behind attn:, p4 behind ffn:", ""},
      {"(attn:d2p2t1c4|ffn:d2p4t1e2)", "", "0.3.2", "the pipeline degrees differ: p2 behind attn:, p4 behind ffn:", ""},
      {"(attn:d4p2t1c1|ffn:d2p2t2e2)", "", "0.5.1", "attn: takes 8 GPUs, ffn: 16", ""},
      {"d1", "0.3.2 to 1.0.2", "1.0.3", bare, "fsdp:d1"},
      {"d2p2t1", "0.3.0-lite to 1.0.2", "1.0.3", bare, "megatron:d2p2"},
      {"[actor]:d4", "0.4.1 to 1.0.2", "2.0.0", bare, "fsdp[actor]:d4"},
      {"sglang:d4+d4", "0.3.2 to 1.0.2", "2.0.0+", bare, "sglang:d4+fsdp:d4"},
      {"vllm:d4+[actor]:d4", "0.4.1 to 1.0.2", "1.0.4", bare, "vllm:d4+fsdp[actor]:d4"},
      {"attn:d4p2t2c2|ffn:d2p2t4e2", "0.3.2 to 1.0.2", "1.0.4", bare_hybrid, "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)"},
      {"(attn:d4p2t2c2|ffn:d2p2t4e2)", "0.3.2 to 1.0.2", "1.0.4", bare_hybrid, "megatron:(attn:d4p2t2c2|ffn:d2p2t4e2)"},
      {"d4+d4", "", "1.0.2", "several parts of training without a backend must all be named", ""},
      {"sglang:d4+[actor]:d4+d4", "", "1.0.2", "three parts or more must all be named: 2 are not", ""},
      {"archon:d1p4", "1.0.0.rc1 and later", "0.5.3", "Archon takes no p before 1.0.0: here p is 4", ""},
      {"megatron:d3e2", "", "1.0.4", "3 GPUs are not a multiple of p*e = 2", ""},
      {"megatron:(attn:d3|ffn:e2)", "", "1.0.4",
       "the expert data degree cannot be derived: 3 GPUs of attn: are not a multiple of e*t*p = 2", ""},
      {"megatron:(attn:d3|ffn:e2)", "", "0.4.0", "attn: takes 3 GPUs, ffn: 6", ""},
      {"sglang:d4|fsdp[a]:d2", "", "1.0.4", "parts that share GPUs must take equally many: 4 and 2 are joined by '|'", ""},
      {"sglang:d4|fsdp:d2", "", "0.4.0", "parts that share GPUs must take equally many: 4 and 2 are joined by '|'", ""},
      {"sglang.d4+fsdp:d4", "0.3.2 to 0.4.0", "1.0.4", "a colon stands behind 'sglang', not a dot (at character 7)",
       "sglang:d4+fsdp:d4"},
      {"sglang.d4p1m1+d2p2m1", "0.1.1 to 0.3.0", "2.0.0+", "a colon stands behind 'sglang', not a dot (at character 7)",
       "sglang:d4+megatron:d2p2"},
      {"d4m2", "", "1.0.2", "'m' was the tensor degree before AReaL 0.3.1: write t (at character 3)", ""},
      {"sglang:d2c2", "", "1.0.4", "'c' is not one of the letters d, t, p of inference (at character 10)", ""},
      {"sglang:d4+eval", "0.3.2 to 0.5.3", "1.0.0", "'+eval' and '+cpu' are of 0.3.1 to 0.5.3 (at character 11)", ""},
      {"sglnag:d4", "", "1.0.4", "'sglnag' is not one of the backends sglang, vllm, fsdp, megatron or archon (at character 1)",
       "sglang:d4"},
      {"archon:d2", "0.5.2 and later", "0.5.1",
       "'archon' is not one of the backends sglang, vllm, fsdp or megatron (at character 1)", ""},
      {"megatron[a]:(attn:d4|ffn:e4)", "2.0.0+", "2.0.0", "a part with attn: and ffn: cannot be named (at character 13)", ""},
      {"fsdp:d4+sglang:d4", "0.4.1 and later", "0.4.0",
       "before 0.4.1 there is one part, or one of inference and behind it one of training (at character 18)", ""},
      {"d32", "0.3.2 to 1.0.2", "0.3.0", "each of the letters d, m, p must stand in a part, in any order and without spaces",
       "d32p1m1"},
      {"sglang:d4+d4", "0.3.2 to 1.0.2", "0.3.1",
       "a dot, not a colon, stands behind the server's name before 0.3.2, and each of d, p and t", "sglang.d4p1t1+d4p1t1"},
      {"actor:d2m1p1,ref:d4m1p1", "", "0.3.0", "the model functions share their GPUs: 2 and 4", ""},
      {"", "", "1.0.4", "a part is missing (at character 1)", ""},
      {"fsdp:d4+", "", "1.0.4", "a part is missing (at character 9)", ""},
      {"fsdp[a b]:d4", "", "1.0.4", "']' is expected (at character 8)", ""},
      {"fsdp[1]:d4", "", "1.0.4", "a name starts with a letter or '_' (at character 6)", ""},
      {"f sdp:d4", "", "1.0.4", "'f' is not one of the letters p, d, t, c, e of training (at character 1)", ""},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CAPTURE(row.release);
    CHECK(accepted(row.text) == row.accepted);
    const AllocationRead read = in(row.release, row.text);
    REQUIRE(!read);
    const std::string who = row.accepted[0] == '\0' ? "" : std::string("; AReaL ") + row.accepted;
    CHECK(read.problem.why.substr(0, std::string(row.why).size() + who.size()) == row.why + who);
    CHECK(read.problem.nearest == row.nearest);
    CHECK(!read.problem.expected.empty());
    if (row.nearest[0] != '\0') CHECK(in(row.release, row.nearest));
  }
}

TEST_CASE("what realhf and lite read over is told") {
  CHECK(shown_in("0.3.1", "d2p2t4e2c4") == "fsdp? d2p2t4");
  CHECK(in("0.3.1", "d2p2t4e2c4").allocation->ignored == "e2c4");
  // 0.3.1 sees three degrees in front and stops; before and after it, the server counts
  CHECK(shown_in("0.3.1", "d2p2t1+sglang.d4p1t1") == "fsdp? d2p2");
  CHECK(in("0.3.1", "d2p2t1+sglang.d4p1t1").allocation->ignored == "+sglang.d4p1t1");
  CHECK(shown_in("0.3.0-lite", "d2p2t1+sglang.d4p1t1") == "sglang d4 + fsdp? d2p2");
  CHECK(in("0.3.1", "sglang.d4p1t1+clients").allocation->ignored == "clients");
  CHECK(shown_in("0.3.0", "d4p2m1junk") == "realhf? d4p2");
  CHECK(acceptance_text("d2p2t4e2c4").find("0.3.1 reads over 'e2c4'") != std::string::npos);
  CHECK(in("0.4.0", "d2p2t4e2c4").allocation->ignored.empty());
}

TEST_CASE("realhf places by words and by model function") {
  CHECK(in("0.3.0", "manual").allocation->placing == Placing::manual);
  CHECK(in("0.3.0", "heuristic").allocation->placing == Placing::heuristic);
  CHECK(!in("0.3.0", "search"));
  CHECK(in("0.1.2", "search").allocation->placing == Placing::search);
  CHECK(!in("0.1.1", "manual"));
  CHECK(shown_in("0.3.0", "sglang.d4p1m1+actor_train:d2m2p1,ref_inf:d4m1p1") ==
        "sglang d4 + actor_train=realhf? d2t2 + ref_inf=realhf? d4 @1");
  CHECK(in("0.3.0", "sglang.d4p1m1+actor_train:d2m2p1,ref_inf:d4m1p1").allocation->gpus() == 8);
  CHECK(shown_in("0.3.0", "mock.d1m1p1+d1m1p1") == "mock d1 + realhf? d1");
  CHECK(!in("0.1.2", "mock.d1m1p1+d1m1p1"));
}

TEST_CASE("older and experimental trainers of a release") {
  CHECK(shown_in("0.4.0", "sglang.d4p1m1+d2p2m1", Parser::legacy) == "sglang d4 + realhf? d2p2");
  CHECK(shown_in("0.2.0", "d4p2m1", Parser::legacy) == "realhf? d4p2");
  CHECK(shown_in("0.5.2", "d4p2m1", Parser::legacy) == "refused: AReaL 0.5.2 has no such trainer");
  CHECK(shown_in("0.3.1", "d4p2t2c2/d2p2t2e4", Parser::experimental) == "megatron? d4p2t2c2e4x2y2");
  CHECK(shown_in("0.3.1", "sglang.d4p1t1+d2p2t1e2c2", Parser::experimental) == "sglang d4 + megatron? d2p2c2e2y2");
  CHECK(shown_in("0.3.1", "d2p2t1+sglang.d4p1t1", Parser::experimental) == "sglang d4 + megatron? d2p2");
  CHECK(!in("0.3.1", "d4p2t2/d2p2t2e2", Parser::experimental));  // attention without c
  CHECK(!in("0.3.1", "d4p2t2c2/d2p4t2e4", Parser::experimental));
  CHECK(!in("0.3.2", "d4p2t2c2/d2p2t2e4", Parser::experimental));
}

TEST_CASE("up to 0.3.2 FSDP takes the number of GPUs, not the letters") {
  CHECK(in("0.3.1", "d2p1t2").allocation->parts[0].world_only);
  CHECK(in("0.3.2", "fsdp:d2t2").allocation->parts[0].world_only);
  CHECK(!in("0.3.3", "fsdp:d2t2").allocation->parts[0].world_only);
  CHECK(!in("0.3.2", "megatron:d2t2").allocation->parts[0].world_only);
}

TEST_CASE("one engine's string holds one part") {
  const Release release = release_named("1.0.4");
  const auto one = [&](const char* text) {
    const AllocationRead read = read_engine(text, release);
    return read ? shown(*read.allocation) : "refused: " + read.problem.why;
  };
  CHECK(one("fsdp:d4") == "fsdp d4");
  CHECK(one("vllm:d2t4p2") == "vllm d2p2t4");
  CHECK(one("megatron:(attn:d1p12t4|ffn:d1p12e4)") == "megatron p12t4e4y1");
  CHECK(one("sglang:d4+fsdp:d4") == "refused: one engine's string holds one part: '+' is not allowed");
  CHECK(one("fsdp:d4|fsdp[a]:d4") == "refused: one engine's string holds one part, not 2");
  CHECK(one("d4").starts_with("refused: a part without a backend"));
  CHECK(!read_engine("fsdp:d4", release_named("1.0.2")));
  CHECK(engine_part_of("fsdp:d4c2", release, {}).layout.context == 2);
  try {
    engine_part_of("fsdp:d4p2", release, {"job.yaml", 3, 12, "actor.backend"});
    FAIL("accepted");
  } catch (const InputError& error) {
    CHECK(std::string(error.what()).starts_with("job.yaml:3:12 actor.backend: found 'fsdp:d4p2', expected"));
  }
  CHECK_THROWS_AS(allocation_of("d4", release, {}), InputError);
  CHECK(allocation_of("fsdp:d4", release, {}).gpus() == 4);
}

TEST_CASE("spaces stand between tokens, never inside one") {
  CHECK(shown_in("1.0.4", " megatron : ( attn : d 2 t\t2 | ffn : e 4 ) \n") == "megatron d2t2e4y1");
  CHECK(shown_in("1.0.4", "fsdp [ a ] : d4") == "a=fsdp d4");
  CHECK(shown_in("1.0.4", "megatron:(attn:d2|ffn:d2") == "megatron d2");
  CHECK(shown_in("1.0.4", "megatron:attn:d2|ffn:d2)") == "megatron d2");
  CHECK(!in("1.0.4", "fsdp:d1 2"));
  CHECK(!in("1.0.4", "fs dp:d1"));
  CHECK(!in("0.3.1", "d4 p2 t1"));
}

TEST_CASE("degrees and texts that are too large") {
  CHECK(in("1.0.4", "sglang:d99999999999999999999").problem.why.starts_with("the degree of 'd' is above 131072"));
  CHECK(in("1.0.4", "fsdp:d131072t2").problem.why == "it takes more than 131072 GPUs");
  CHECK(in("1.0.4", "megatron:d131072t131072p131072c131072e131072").problem.why == "it takes more than 131072 GPUs");
  CHECK(in("0.4.0", "megatron:(attn:d2|ffn:d131072p1t131072e131072)").problem.why == "attn: takes 2 GPUs, ffn: more than 131072");
  CHECK(in("0.3.1", "d999999p999999t999999").problem.why.starts_with("the degree of 'd' is above"));
  CHECK(in("0.3.0", "d99999999999999999999m1p1").problem.why.starts_with("the degree of 'd' is above"));
  CHECK(in("0.3.0", "d0m1p1").problem.why == "a degree is at least 1: 'd0'");
  CHECK(in("0.3.0", "d04m1p1").allocation->gpus() == 4);
  CHECK(!in("1.0.4", "fsdp:d04"));
  CHECK(in("1.0.4", "fsdp:d1" + std::string(5000, ' ')).problem.why == "it is longer than 4096 characters");
  std::string many = "fsdp[a0]:d1";
  for (int i = 1; i < 200; ++i) many += "|fsdp[a" + std::to_string(i) + "]:d1";
  CHECK(in("1.0.4", many).allocation->parts.size() == 200);
}

TEST_CASE("acceptance covers every release in order and in words") {
  const auto all = acceptance("sglang:d4+d4");
  REQUIRE(all.size() >= 3);
  CHECK(all.front().first == release_named("0.1.1"));
  CHECK(all.back().last == newest_release());
  for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i].first.index == all[i - 1].last.index + 1);
  CHECK(acceptance_text("sglang:d4+d4") ==
        "accepted by 0.3.2 to 1.0.2; refused by 0.1.1 to 0.3.1, 1.0.3 and later: "
        "a part without a backend: from 1.0.3 on each part names it, as in fsdp:d4");
  CHECK(acceptance_text("fsdp:d4|fsdp:d4") == "accepted by no release: every part behind '|' must be named");
}

TEST_CASE("versions as a user writes them") {
  const auto release = [](const char* text) {
    const auto found = find_release(text);
    return found ? std::string(name_of(*found)) : std::string("none");
  };
  CHECK(release("1.0.4") == "1.0.4");
  CHECK(release("v0.3.0-lite") == "0.3.0-lite");
  CHECK(release("1.0") == "1.0.0");
  CHECK(release("2.0") == "2.0.0");
  CHECK(release("main") == "2.0.0+");
  CHECK(release("2.0.0+") == "2.0.0+");
  CHECK(release("2.1.0") == "none");
  CHECK(release("1.0.9") == "1.0.4");
  CHECK(release("0.3.4.post1") == "0.3.4.post1");
  CHECK(release("0.1.0") == "none");
  CHECK(release("") == "none");
  CHECK(release("latest and greatest") == "none");
  CHECK(release_named("0.3.0") < release_named("0.3.0-lite"));
}

TEST_CASE("any bytes are read or refused by every grammar") {
  std::mt19937 random(11);  // NOLINT: the same texts every time
  const std::string pieces[] = {"sglang", "vllm",    "mock", "fsdp", "megatron", "archon",   "attn", "ffn",
                                "eval",   "cpu",     "d4",   "t2",   "p1",       "m2",       "c2",   "e2",
                                ":",      ".",       "+",    "|",    "(",        ")",        "[",    "]",
                                "/",      ",",       "a",    " ",    "0",        "99999999", "\n",   std::string(1, '\0'),
                                "\xff",   "\xc3\xa9"};
  for (int i = 0; i < 4000; ++i) {
    std::string text;
    for (auto n = random() % 14; n > 0; --n)
      text += random() % 8 == 0 ? std::string(1, static_cast<char>(random() % 256)) : pieces[random() % std::size(pieces)];
    CAPTURE(text);
    for (const Acceptance& one : acceptance(text)) {
      if (!one.accepted) CHECK(!one.why.empty());
      const AllocationRead read = read_allocation(text, one.last);
      CHECK(read.allocation.has_value() == one.accepted);
      if (!read) continue;
      CHECK(read.allocation->gpus() >= 0);
      for (const Part& part : read.allocation->parts) {
        CHECK(part.layout.world() <= kMostDegree);
        const Layout& l = part.layout;
        if (l.expert > 1) CHECK(part.expert_data * l.expert * l.expert_tensor * l.pipeline == l.world());
        if (part.anchor) CHECK(read.allocation->parts.at(*part.anchor).layout.world() == part.layout.world());
      }
    }
  }
}
