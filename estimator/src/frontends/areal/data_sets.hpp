// What AReaL's own readers of data sets make of a sample, as far as it bounds the size of a micro-batch.
//
// How long a sample gets is a fact of the data set, so it counts only where the path names that very set.
#pragma once
#include <cstdint>
#include <string_view>

namespace oomplan::areal {

struct LongestSample {
  std::int64_t tokens = 0;  ///< 0: not known
  std::string_view by;      ///< what counted them
};
/// `type`: train_dataset.type; `model`: by whose tokenizer.
LongestSample longest_sample(std::string_view path, std::string_view type, std::string_view model);

/// Images of a sample as the reader hands them to the processor.
struct SampleImages {
  std::int64_t images = 0;             ///< 0: the data set is not known, or has none
  std::int64_t height = 0, width = 0;  ///< pixels
  std::string_view by;                 ///< what makes them so large
};
/// AReaL's readers are chosen by what the path contains (areal/dataset/__init__.py: _get_custom_dataset).
SampleImages images_of_sample(std::string_view path, std::string_view type);

}  // namespace oomplan::areal
