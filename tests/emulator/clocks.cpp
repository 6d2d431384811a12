#include "clocks.h"

#include <algorithm>

namespace emulator {
namespace {

using TimesVector = std::vector<uint32_t>;
using NewsVector = std::vector<std::pair<unsigned, Times>>;

void join(TimesVector& to, const TimesVector& from) {
  for (size_t i = 0; i < to.size(); i++) to[i] = std::max(to[i], from[i]);
}

Times joined(const Times& a, const Times& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  TimesVector times = *a;
  join(times, *b);
  return std::make_shared<const TimesVector>(std::move(times));
}

const Times* find(const News& news, unsigned block) {
  if (!news) return nullptr;
  const auto found = std::lower_bound(news->begin(), news->end(), block,
                                      [](const auto& item, unsigned block) { return item.first < block; });
  return found != news->end() && found->first == block ? &found->second : nullptr;
}

}  // namespace

News joined(const News& a, const News& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  NewsVector news;
  news.reserve(a->size() + b->size());
  for (auto i = a->begin(), j = b->begin(); i != a->end() || j != b->end();) {
    if (j == b->end() || (i != a->end() && i->first < j->first))
      news.push_back(*i++);
    else if (i == a->end() || j->first < i->first)
      news.push_back(*j++);
    else
      news.push_back({i->first, joined(i->second, j->second)}), i++, j++;
  }
  return std::make_shared<const NewsVector>(std::move(news));
}

void Clocks::start(unsigned block, int threads) {
  block_ = block, barrier_ = 0;
  time_.assign(threads, 1);
  heard_.assign(threads, {});
}

bool Clocks::has_heard(int thread, unsigned of_block, int of, uint32_t time) const {
  const Heard& heard = heard_[thread];
  if (of_block == block_) return of == thread || time <= barrier_ || (heard.own && (*heard.own)[of] >= time);
  const Times* const times = find(heard.others, of_block);
  return times && (**times)[of] >= time;
}

void Clocks::barrier() {
  barrier_ = *std::max_element(time_.begin(), time_.end());
  std::fill(time_.begin(), time_.end(), barrier_ + 1);
  Heard common;
  for (const Heard& heard : heard_) common.others = joined(common.others, heard.others);
  std::fill(heard_.begin(), heard_.end(), common);
}

void Clocks::sync_warp(int first, unsigned lanes) {
  TimesVector times(time_.size(), 0);
  const TimesVector* last = nullptr;
  News others;
  for (int lane = 0; lane < 32; lane++) {
    if (!(lanes >> lane & 1)) continue;
    const Heard& heard = heard_[first + lane];
    if (heard.own && heard.own.get() != last) join(times, *heard.own);  // mostly they share that of the last time
    last = heard.own.get();
    others = joined(others, heard.others);
  }
  for (int lane = 0; lane < 32; lane++)
    if (lanes >> lane & 1) times[first + lane] = time_[first + lane]++;
  const Heard common = {std::make_shared<const TimesVector>(std::move(times)), others, nullptr};
  for (int lane = 0; lane < 32; lane++)
    if (lanes >> lane & 1) heard_[first + lane] = common;
}

News Clocks::release(int thread) {
  const Heard& heard = heard_[thread];
  TimesVector times(time_.size(), barrier_);
  if (heard.own) join(times, *heard.own);
  times[thread] = time_[thread]++;
  const NewsVector own = {{block_, std::make_shared<const TimesVector>(std::move(times))}};
  return joined(heard.others, std::make_shared<const NewsVector>(own));
}

void Clocks::acquire(int thread, const News& news) {
  Heard& heard = heard_[thread];
  if (!news || news == heard.last) return;
  heard.last = news;
  const Times* const own = find(news, block_);
  if (own) heard.own = joined(heard.own, *own);
  if (!own || news->size() > 1) heard.others = joined(heard.others, news);  // with the own block, for no use or harm
}

}  // namespace emulator
