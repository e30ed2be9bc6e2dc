// From the words of a command to those that the engine's parser would see.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/servers/serve_draft.hpp"
#include "frontends/yaml.hpp"
#include "units/json_depth.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

using NestedJson = nlohmann::ordered_json;

/// A value of --name.key: JSON where it is, a count such as 80g, else text (vllm/utils/argparse_utils.py parse_args, 0.19).
NestedJson json_of(const std::string& text) {
  auto out = bounded_json<NestedJson>(text);
  if (!out.is_discarded()) return out;
  if (const auto number = count_of(text)) return *number;
  return text;
}

std::string dashed(std::string text) {
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

/// The text that a YAML node would have on a command line; maps and lists in it as JSON.
NestedJson value_of(const yaml::Node& node) {
  if (node.kind == yaml::Node::Kind::map) {
    NestedJson out = NestedJson::object();
    for (const auto& entry : node.entries) out[entry.first.text] = value_of(entry.second);
    return out;
  }
  if (node.kind == yaml::Node::Kind::list) {
    NestedJson out = NestedJson::array();
    for (const auto& item : node.items) out.push_back(value_of(item));
    return out;
  }
  if (node.kind == yaml::Node::Kind::null) return nullptr;
  return node.quoted ? NestedJson(node.text) : json_of(node.text);
}

class Words {
 public:
  Words(const std::vector<std::string>& command, ServeDraft& draft,
        const std::function<std::optional<std::string>(const std::string&)>& open)
      : command_(command), draft_(draft), open_(open) {
    int column = 1;
    for (const std::string& word : command) {
      columns_.push_back(column);
      column += static_cast<int>(word.size()) + 1;
    }
  }

  std::vector<Word> read(std::size_t first) {
    std::vector<Word> out;
    for (std::size_t i = first; i < command_.size(); ++i) {
      Word word{command_[i], {kCommandLine, 1, columns_[i], command_[i].substr(0, command_[i].find('='))}, i};
      const std::string name = dashed(word.place.path);
      if (name == "--config") {
        config(word, i, out);
      } else if (word.text.starts_with("-O") && draft_.engine == EngineKind::vllm) {
        level(word, i, out);
      } else if (name.starts_with("-") && name.find('.') != std::string::npos && !count_of(name)) {
        dotted(word, i);
      } else {
        out.push_back(std::move(word));
      }
    }
    for (auto& [name, word] : nested_) {  // as if they had been written behind everything else
      out.push_back({name, word.first, kNotInCommand});
      out.push_back({json_text(word.second, -1), word.first, kNotInCommand});
    }
    return out;
  }

 private:
  /// The value of the flag at `i`, which moves on to it where it is a word of its own. Empty: none.
  std::optional<std::string> value(const Word& word, std::size_t& i) const {
    if (const auto sign = word.text.find('='); sign != std::string::npos) return word.text.substr(sign + 1);
    if (i + 1 >= command_.size()) return std::nullopt;
    return command_[++i];
  }

  void level(Word word, std::size_t& i, std::vector<Word>& out) {
    std::string of = word.text.substr(2);
    if (of.starts_with('.')) return dotted(word, i);
    if (of.starts_with('=')) of.erase(0, 1);
    if (of.empty() && i + 1 < command_.size()) of = command_[++i];
    word.text = "--optimization-level";
    word.at = kNotInCommand;
    out.push_back(word);
    word.text = of;
    out.push_back(std::move(word));
  }

  /// "--compilation-config.mode 3", "-cc.cudagraph_mode=NONE".
  void dotted(const Word& word, std::size_t& i) {
    const auto text = value(word, i);
    if (!text) return draft_.complain(word.place, "nothing behind it", "a value");
    const std::size_t dot = word.place.path.find('.');
    std::string name = dashed(word.place.path.substr(0, dot));
    if (name == "-O") name = "--compilation-config";  // up to 0.11
    NestedJson* at = &nested_.try_emplace(name, word.place, NestedJson::object()).first->second.second;
    std::string left = word.place.path.substr(dot + 1);
    while (at->is_object() && !left.empty()) {
      const std::size_t next = left.find('.');
      at = &(*at)[left.substr(0, next)];
      left = next == std::string::npos ? "" : left.substr(next + 1);
      if (!left.empty() && !at->is_object()) *at = NestedJson::object();
    }
    *at = json_of(*text);
  }

  /// The lines of a YAML file stand in front: what is typed counts. Both engines read flags so (vllm/utils/argparse_utils.py
  /// load_config_file, 0.19; sglang/srt/server_args_config_parser.py, 0.5.10).
  void config(const Word& word, std::size_t& i, std::vector<Word>& out) {
    const auto path = value(word, i);
    if (!path) return draft_.complain(word.place, "nothing behind it", "a YAML file");
    if (had_config_) return draft_.complain(word.place, "a second file", "one file", "the engine itself takes one");
    had_config_ = true;
    if (!path->ends_with(".yaml") && !path->ends_with(".yml"))
      return draft_.complain(word.place, fmt::format("'{}'", *path), "a file whose name ends in .yaml or .yml",
                             "the engine itself takes no other");
    const auto text = open_ ? open_(*path) : std::nullopt;
    if (!text) return draft_.complain(word.place, fmt::format("'{}'", *path), "a file that is there");
    const yaml::Node root = yaml::parse(*text, *path, {false, "a server's configuration"});
    if (root.kind != yaml::Node::Kind::map && root.kind != yaml::Node::Kind::null)
      return draft_.complain({*path, root.line, root.column, {}}, yaml::describe(root), "flags and their values");
    std::vector<Word> lines;
    for (const auto& entry : root.entries) line(*path, entry, lines);
    const bool model_first = !out.empty() && !out.front().text.starts_with('-');
    out.insert(out.begin() + (model_first ? 1 : 0), lines.begin(), lines.end());
  }

  static void line(const std::string& file, const yaml::Entry& entry, std::vector<Word>& lines) {
    const std::string name = "--" + entry.first.text;
    const Place place{file, entry.first.line, entry.first.column, name};
    const auto put = [&](std::string text) { lines.push_back({std::move(text), place, kNotInCommand}); };
    const yaml::Node& node = entry.second;
    if (node.kind == yaml::Node::Kind::null) return;
    const bool yes = !node.quoted && (node.text == "true" || node.text == "True"),
               no = !node.quoted && (node.text == "false" || node.text == "False");
    if (node.kind == yaml::Node::Kind::scalar && no) return;
    put(name);
    if (node.kind == yaml::Node::Kind::scalar && yes) return;
    if (node.kind == yaml::Node::Kind::list)
      for (const auto& item : node.items) put(item.text);
    else
      put(node.kind == yaml::Node::Kind::map ? json_text(value_of(node), -1) : node.text);
  }

  const std::vector<std::string>& command_;
  ServeDraft& draft_;
  const std::function<std::optional<std::string>(const std::string&)>& open_;
  std::vector<int> columns_;
  std::map<std::string, std::pair<Place, NestedJson>> nested_;
  bool had_config_ = false;
};

}  // namespace

std::optional<std::int64_t> count_of(std::string_view text, EngineKind engine) {
  double scale = 1;
  if (!text.empty() && engine == EngineKind::vllm) {
    const char last = text.back();
    const auto step = std::string_view("kmgt").find(static_cast<char>(std::tolower(static_cast<unsigned char>(last))));
    if (step != std::string_view::npos) {
      const double base = std::isupper(static_cast<unsigned char>(last)) != 0 ? 1024 : 1000;
      scale = std::pow(base, static_cast<double>(step + 1));
      text.remove_suffix(1);
    }
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(std::abs(value * scale) < 1e15)) return std::nullopt;
  return static_cast<std::int64_t>(std::llround(value * scale));
}

std::vector<Word> serve_words(const std::vector<std::string>& command, std::size_t first, ServeDraft& draft,
                              const std::function<std::optional<std::string>(const std::string&)>& open) {
  return Words(command, draft, open).read(first);
}

}  // namespace oomplan
