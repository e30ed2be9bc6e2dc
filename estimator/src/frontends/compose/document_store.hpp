// Documents by their texts, kept: parsing a file costs more than everything that is done with it.
#pragma once
#include <algorithm>
#include <list>
#include <memory>
#include <string>

#include "frontends/compose/document.hpp"

namespace oomplan::compose {

class DocumentStore {
 public:
  DocumentStore() = default;
  /// Keeps so many texts.
  explicit DocumentStore(std::size_t most) : most_(most) {}
  /// As read_document(). The last few texts are kept.
  std::shared_ptr<const Document> get(const std::string& text, const std::string& file) {
    const auto known = std::find_if(rows_.begin(), rows_.end(), [&](const Row& r) { return r.file == file && r.text == text; });
    if (known != rows_.end()) {
      rows_.splice(rows_.begin(), rows_, known);
      return rows_.front().document;
    }
    auto document = std::make_shared<const Document>(read_document(text, file));
    if (rows_.size() >= most_) rows_.pop_back();
    rows_.push_front({text, file, document});
    return document;
  }

 private:
  struct Row {
    std::string text, file;
    std::shared_ptr<const Document> document;
  };
  std::size_t most_ = 16;
  std::list<Row> rows_;  ///< last used first
};

}  // namespace oomplan::compose
