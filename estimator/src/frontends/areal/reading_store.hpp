// What stays when one file is read again with other arguments: its text parsed, and the classes of its release.
//
// A store answers equal questions alike, and changes no answer. It belongs to one reader and one thread.
#pragma once
#include <cstdint>
#include <map>
#include <memory>

#include "frontends/areal/schema.hpp"
#include "frontends/compose/document_store.hpp"
#include "frontends/structured/class_table.hpp"

namespace oomplan::areal {

class ReadingStore {
 public:
  compose::DocumentStore& documents() { return documents_; }
  /// The reference stays good.
  structured::ClassTable& classes(const Schema& schema) {
    return classes_.try_emplace(schema.release().index, std::make_unique<Schema>(schema)).first->second;
  }

 private:
  compose::DocumentStore documents_;
  std::map<std::uint8_t, structured::ClassTable> classes_;  ///< by release
};

}  // namespace oomplan::areal
