// A change of a knob, spelt as a change of Oumi's file: which key says it, and with which value.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/fact_value.hpp"
#include "frontends/oumi/meaning.hpp"
#include "frontends/oumi/read.hpp"

namespace oomplan::oumi {

struct Edit {
  std::string path;
  FactValue value;
};
struct Spelt {
  std::vector<Edit> edits;
  std::string why;  ///< "": done; otherwise why the file cannot say it
};
/// `value`: the knob's text, as a job file has it.
Spelt spell(const OumiText&, const OumiMeaning&, std::string_view knob, const std::string& value);
/// The key that says a knob; "" where there is none.
std::string key_of_knob(const OumiText&, const OumiMeaning&, std::string_view knob);
/// "--training.per_device_train_batch_size=1".
std::string argument_of(const Edit&);

}  // namespace oomplan::oumi
