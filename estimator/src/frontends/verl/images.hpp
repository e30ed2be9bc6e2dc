// Images in the batches of a vision-language model under verl.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/derivation.hpp"
#include "frontends/images.hpp"
#include "frontends/verl/settings.hpp"

namespace oomplan::verl {

/// Where the configuration says that samples have images, and what becomes of the tower.
class VerlImages {
 public:
  VerlImages(const VerlText& text, const VerlMeaning& m, VerlSettings& s, const ImagesSaid& said, std::vector<Note>& notes)
      : text_(text), m_(m), s_(s), said_(said), notes_(notes) {}
  /// Of a role whose micro-batch has `tokens`, packed, or one sequence after the other. `length`: tokens of a sequence.
  void put(const std::string& role, std::int64_t tokens, bool packed, std::int64_t length);

 private:
  const compose::Node* evidence() const;
  bool freezes(const std::string& role) const;
  const VerlText& text_;
  const VerlMeaning& m_;
  VerlSettings& s_;
  const ImagesSaid& said_;
  std::vector<Note>& notes_;
};

/// How large images are that nobody described: as large as a prompt allows. Without a tower there are none.
void derive_images(Derivation&, Role&);

}  // namespace oomplan::verl
