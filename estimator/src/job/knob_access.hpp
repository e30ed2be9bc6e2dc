// How a knob's text reaches a field of a Job: one pair of functions per type of field, made from a pointer to the member.
#pragma once
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "job/knobs.hpp"
#include "job/names.hpp"
#include "layout/letters.hpp"
#include "units/sizes.hpp"

namespace oomplan::knob {

struct Access {
  std::string (*get)(const Job&, const Role*);
  Refusal (*set)(const Knob&, Job&, Role*, std::string_view);
};

// Where a member lives: the Job itself, one of its parts, the Role, its Trainer or its Server.
inline const Job& owner(const Job& j, const Role*, const Job*) { return j; }
inline const Cluster& owner(const Job& j, const Role*, const Cluster*) { return j.cluster; }
inline const Sync& owner(const Job& j, const Role*, const Sync*) { return j.sync; }
inline const Role& owner(const Job&, const Role* r, const Role*) { return *r; }
inline const Trainer& owner(const Job&, const Role* r, const Trainer*) { return r->trainer; }
inline const Lora& owner(const Job&, const Role* r, const Lora*) { return r->trainer.lora; }
inline const QuantisedBase& owner(const Job&, const Role* r, const QuantisedBase*) { return r->trainer.lora.base; }
inline const Zero& owner(const Job&, const Role* r, const Zero*) { return r->trainer.zero; }
inline const Vision& owner(const Job&, const Role* r, const Vision*) { return r->trainer.vision; }
inline const Megatron& owner(const Job&, const Role* r, const Megatron*) { return r->trainer.megatron; }
inline const Server& owner(const Job&, const Role* r, const Server*) { return r->server; }
inline const AdapterSlots& owner(const Job&, const Role* r, const AdapterSlots*) { return r->server.lora; }

template <class C, class T>
C class_of(T C::*);
template <class C, class T>
T type_of(T C::*);
template <auto M>
using Owner = decltype(class_of(M));
template <auto M>
using Type = decltype(type_of(M));

template <auto M>
const Type<M>& read(const Job& j, const Role* r) {
  return owner(j, r, static_cast<const Owner<M>*>(nullptr)).*M;
}
template <auto M>
Type<M>& write(Job& j, Role* r) {
  return const_cast<Type<M>&>(read<M>(j, r));  // the job and the role came in as mutable
}

Refusal check_count(const Knob&, std::string_view, std::int64_t& out);
Refusal check_bytes(const Knob&, std::string_view, Bytes& out);
Refusal check_number(const Knob&, std::string_view, double& out);
Refusal check_flag(std::string_view, bool& out);
Refusal check_layout(std::string_view, Layout& out);
Refusal refuse_choice(const Knob&, std::string_view);

template <auto M>
constexpr Access count() {
  return {[](const Job& j, const Role* r) { return count_text(read<M>(j, r)); },
          [](const Knob& k, Job& j, Role* r, std::string_view text) { return check_count(k, text, write<M>(j, r)); }};
}
/// 0 is written as a word.
template <auto M>
constexpr Access count_or_auto() {
  return {[](const Job& j, const Role* r) { return read<M>(j, r) == 0 ? std::string("auto") : count_text(read<M>(j, r)); },
          [](const Knob& k, Job& j, Role* r, std::string_view text) { return check_count(k, text, write<M>(j, r)); }};
}
template <auto M>
constexpr Access bytes() {
  return {[](const Job& j, const Role* r) { return exact_bytes_text(read<M>(j, r)); },
          [](const Knob& k, Job& j, Role* r, std::string_view text) { return check_bytes(k, text, write<M>(j, r)); }};
}
template <auto M>
constexpr Access bytes_or_auto() {
  return {[](const Job& j, const Role* r) { return read<M>(j, r) == 0 ? std::string("auto") : exact_bytes_text(read<M>(j, r)); },
          [](const Knob& k, Job& j, Role* r, std::string_view text) { return check_bytes(k, text, write<M>(j, r)); }};
}
template <auto M>
constexpr Access number_or_auto() {
  return {[](const Job& j, const Role* r) { return read<M>(j, r) == 0 ? std::string("auto") : number_text(read<M>(j, r)); },
          [](const Knob& k, Job& j, Role* r, std::string_view text) { return check_number(k, text, write<M>(j, r)); }};
}
template <auto M>
constexpr Access flag() {
  return {[](const Job& j, const Role* r) { return std::string(read<M>(j, r) ? "true" : "false"); },
          [](const Knob&, Job& j, Role* r, std::string_view text) { return check_flag(text, write<M>(j, r)); }};
}
/// An enum with kNames. Spellings outside of the knob's choices are refused although the enum has them.
template <auto M>
constexpr Access choice() {
  return {[](const Job& j, const Role* r) { return std::string(spelling(read<M>(j, r))); },
          [](const Knob& k, Job& j, Role* r, std::string_view text) {
            const auto value = parse<Type<M>>(text);
            bool offered = false;
            for (const auto& c : k.choices) offered = offered || c == text;
            if (!value || !offered) return refuse_choice(k, text);
            write<M>(j, r) = *value;
            return Refusal{};
          }};
}

}  // namespace oomplan::knob
