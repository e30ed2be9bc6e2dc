// A change of a knob, spelt as a change of arguments: which one says it, and with which value.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/fact_value.hpp"
#include "frontends/transformers/meaning.hpp"

namespace oomplan::transformers {

struct Edit {
  std::string path;
  FactValue value;
};
struct Spelt {
  std::vector<Edit> edits;
  std::string why;  ///< "": done; otherwise why no argument can say it
};
/// `value`: the knob's text, as a job file has it.
Spelt spell(const HfText&, const HfMeaning&, std::string_view knob, const std::string& value);
/// The argument that says a knob; "" where there is none.
std::string key_of_knob(const HfText&, const HfMeaning&, std::string_view knob);
/// "--per_device_train_batch_size=1".
std::string argument_of(const Edit&);

}  // namespace oomplan::transformers
