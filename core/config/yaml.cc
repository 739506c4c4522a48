#include "core/config/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <sstream>

#include "core/config/yaml_guard.h"
#include "core/runtime/check.h"

namespace trainer {
namespace {

constexpr int max_nodes = 200'000;

/// Builds the tree from yaml-cpp's events. Its own YAML::Node is not used: that looks up the first of two equal keys
/// and knows no difference between text and number.
class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const std::string& name) : name_(name) {}

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { add(node(YamlNode::Kind::null, mark)); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse(mark, "aliases are not used here"); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    check_tag(mark, tag);
    YamlNode scalar = node(YamlNode::Kind::scalar, mark);
    scalar.text = value;
    add(std::move(scalar));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    start(YamlNode::Kind::list, mark, tag);
  }
  void OnSequenceEnd() override { end(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    start(YamlNode::Kind::map, mark, tag);
  }
  void OnMapEnd() override { end(); }

 private:
  static Place place(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1}; }

  [[noreturn]] void refuse(const YAML::Mark& mark, const char* what) const { refuse(place(mark), what); }
  [[noreturn]] void refuse(Place place, const char* what) const {
    fail(ExitCode::config, "{}:{}:{}: {}", name_, place.line, place.column, what);
  }

  /// "?" stands for a plain value, "!" for a quoted one.
  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?" && tag != "!") refuse(mark, "tags are not used here");
  }

  YamlNode node(YamlNode::Kind kind, const YAML::Mark& mark) {
    if (++nodes_ > max_nodes) refuse(mark, "has too many values for a configuration");
    YamlNode node;
    node.kind = kind;
    node.place = place(mark);
    return node;
  }

  void start(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag) {
    check_tag(mark, tag);
    if (static_cast<int>(open_.size()) >= max_yaml_depth) refuse(mark, "is nested too deep for a configuration");
    open_.push_back(node(kind, mark));
  }

  void end() {
    YamlNode finished = std::move(open_.back());
    open_.pop_back();
    add(std::move(finished));
  }

  void add(YamlNode child) {
    if (open_.empty()) {
      root_ = std::move(child);
      return;
    }
    YamlNode& parent = open_.back();
    if (parent.kind == YamlNode::Kind::map && parent.keys.size() == parent.items.size()) {
      if (child.kind != YamlNode::Kind::scalar) refuse(child.place, "a key must be a text");
      parent.keys.push_back({child.text, child.place});
      return;
    }
    // yaml-cpp places a missing value at whatever follows it.
    if (parent.kind == YamlNode::Kind::map && child.kind == YamlNode::Kind::null)
      child.place = parent.keys.back().place;
    parent.items.push_back(std::move(child));
  }

  const std::string& name_;
  int nodes_ = 0;
  YamlNode root_;
  std::vector<YamlNode> open_;
};

}  // namespace

YamlNode parse_yaml(std::string_view text, const std::string& name) {
  guard_yaml(text, name);
  std::istringstream stream{std::string(text)};
  TreeBuilder builder(name);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return {};
    if (parser.HandleNextDocument(builder))
      fail(ExitCode::config, "{}: has several documents; right would be one", name);
  } catch (const YAML::Exception& e) {
    fail(ExitCode::config, "{}:{}:{}: is not valid YAML: {}", name, e.mark.line + 1, e.mark.column + 1, e.msg);
  }
  return builder.take();
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string shown;
  for (const char c : text) {
    if (shown.size() >= limit) return shown + "...";
    const unsigned byte = static_cast<unsigned char>(c);
    shown += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return shown;
}

}  // namespace trainer
