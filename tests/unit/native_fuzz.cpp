// Broken job files by the thousand: whatever the bytes are, the answer is a job or an InputError with a place.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include <oomplan/oomplan.hpp>

#include "frontends/write.hpp"
#include "job/knobs.hpp"

using namespace oomplan;

namespace {

std::vector<std::string> seeds() {
  std::vector<std::string> out;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(OOMPLAN_SOURCE_DIR) / "examples")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path());
    out.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return out;
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {
    for (const auto& knob : knobs()) words_.emplace_back(knob.key);
    for (const char* word : {"0",
                             "-1",
                             "99999999999999999999",
                             "1e999",
                             ".nan",
                             "null",
                             "~",
                             "[]",
                             "{}",
                             "&a",
                             "*a",
                             "<<",
                             "!!int",
                             "|",
                             ">",
                             "'",
                             "\"",
                             "d1",
                             "d131072",
                             "attn:d2|ffn:e2",
                             "8 x H100-80GB",
                             "131072 x H100-80GB",
                             "1GiB",
                             "1024TiB",
                             "auto",
                             "none",
                             "true",
                             "16m",
                             "- ",
                             ": ",
                             "? ",
                             "\n",
                             "\t",
                             "---\n",
                             "actor: ",
                             "critic: {beside: actor}\n",
                             "\xff",
                             "\xc2\xa0"})
      words_.emplace_back(word);
  }
  std::string next() {
    std::string text = seeds_[at(seeds_.size())];
    for (std::size_t n = 1 + at(4); n > 0; --n) mutate(text);
    return text;
  }
  std::string word() { return words_[at(words_.size())]; }

 private:
  std::size_t at(std::size_t n) { return random_() % n; }
  void mutate(std::string& text) {
    const std::size_t where = text.empty() ? 0 : at(text.size());
    switch (at(6)) {
      case 0:
        text.insert(where, word());
        break;
      case 1:
        text.erase(where, 1 + at(8));
        break;
      case 2:
        text.insert(where, 1, static_cast<char>(at(256)));
        break;
      case 3:
        text.insert(where, text.substr(at(text.size() + 1), at(60)));
        break;
      case 4:
        text.resize(where);
        break;
      default:
        replace_a_word(text, where);
    }
  }
  void replace_a_word(std::string& text, std::size_t where) {
    const auto begin = text.find_first_of(" ,:{}\n", where);
    if (begin == std::string::npos) return;
    const auto end = text.find_first_of(",}\n", begin + 1);
    text.replace(begin + 1, end == std::string::npos ? std::string::npos : end - begin - 1, " " + word());
  }

  std::mt19937 random_{20240917};
  std::vector<std::string> seeds_, words_;
};

}  // namespace

TEST_CASE("any text gives a job or an InputError, and a job that was read can be written and read again") {
  Mutator mutator(seeds());
  int good = 0, bad = 0;
  for (int i = 0; i < 4000; ++i) {
    Source source{mutator.next(), "fuzz.yaml", {}, {}};
    if (i % 3 == 0) source.overrides.push_back(mutator.word() + (i % 2 == 0 ? "=" : "") + mutator.word());
    if (i % 5 == 0) source.overrides.push_back("actor." + mutator.word() + "=" + mutator.word());
    CAPTURE(source.text);
    try {
      const Job job = read(source).job;
      CHECK(same_settings(read({to_yaml(job), "again.yaml", {}, {}}).job, job));
      CHECK(!to_annotated_yaml(job).empty());
      CHECK(!to_json(job).empty());
      ++good;
    } catch (const InputError& e) {
      REQUIRE(!e.problems.empty());
      for (const auto& problem : e.problems) CHECK((!problem.place.file.empty() && to_text(problem).size() > 12));
      ++bad;
    }
  }
  CHECK(good > 50);
  CHECK(bad > 1000);
}
