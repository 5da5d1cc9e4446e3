#ifndef EVT_EPILOGUE_TRAITS_HPP
#define EVT_EPILOGUE_TRAITS_HPP

// Detect optional parts of an operation's state: see operation.hpp.

#include <type_traits>
#include <utility>

namespace evt {
namespace epilogue {

/// No shared memory, or no fetched values.
struct Nothing {};

template <class State, class = void>
struct SharedOf {
  using type = Nothing;
};
template <class State>
struct SharedOf<State, std::void_t<typename State::SharedStorage>> {
  using type = typename State::SharedStorage;
};

template <class State, class = void>
struct FetchedOf {
  using type = Nothing;
  static constexpr bool kExists = false, kOfTile = false;
};
template <class State, class = void>
struct IsOfTile : std::false_type {};
template <class State>
struct IsOfTile<State, std::enable_if_t<State::kOfTile>> : std::true_type {};
template <class State>
struct FetchedOf<State, std::void_t<typename State::Fetched>> {
  using type = typename State::Fetched;
  static constexpr bool kExists = true, kOfTile = IsOfTile<State>::value;
};

/// The rows of a tile, if they are consecutive and their number is known; else 0.
template <class Lanes, class = void>
struct TileRows : std::integral_constant<int, 0> {};
template <class Lanes>
struct TileRows<Lanes, std::void_t<decltype(Lanes::kTileRows)>> : std::integral_constant<int, Lanes::kTileRows> {};

template <class State, class = void>
struct Begins : std::false_type {};
template <class State>
struct Begins<State, std::void_t<decltype(std::declval<State&>().begin())>> : std::true_type {};

template <class State, class = void>
struct Ends : std::false_type {};
template <class State>
struct Ends<State, std::void_t<decltype(std::declval<State&>().end())>> : std::true_type {};

}  // namespace epilogue
}  // namespace evt

#endif  // EVT_EPILOGUE_TRAITS_HPP
