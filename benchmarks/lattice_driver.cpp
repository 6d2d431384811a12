// The lattice on arc scores alone, without torch, for cpu_floors.py: prints the largest errors of a loss and of a
// posterior against a recursion in double, then for every round the nanoseconds per cell of forward and of
// forward + backward.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../rnnt_loss/backend.h"

using namespace rnnt;

namespace {

double log_add(double a, double b) {
  const double larger = std::max(a, b);
  return larger == -INFINITY ? larger : larger + std::log1p(std::exp(std::min(a, b) - larger));
}

}  // namespace

int main(int, char** arguments) {
  const int64_t B = atoi(arguments[1]), T = atoi(arguments[2]), U = atoi(arguments[3]), rounds = atoi(arguments[4]);
  const std::vector<int32_t> labels(B * U, 1), input_lengths(B, T), label_lengths(B, U);
  const Batch batch{B, T, U + 1, 2, {labels.data()}, {input_lengths.data()}, {label_lengths.data()}, 0, kStandard};
  const FrontLayout layout = batch.layout();
  const int64_t slots = layout.slots();
  std::vector<float> arcs(4 * B * slots), shares(B * slots), posteriors(2 * B * slots);
  std::vector<double> losses(B);
  uint32_t seed = 1;
  for (int64_t b = 0; b < B; b++)
    for (const int plane : {0, 2})  // mantissas of log-probabilities from -9 to -3; the exponents are 0
      for (int64_t slot = 0; slot < slots; slot++)
        arcs[(4 * b + plane) * slots + slot] = std::exp(-9 + ((seed = seed * 1664525u + 1013904223u) >> 8) * 0x6p-24f);

  const auto forward = [&](float* kept) {
    cpu::lattice({batch, {arcs.data(), 4 * slots, false}, {losses.data(), true}, kept, nullptr}, 0, B);
  };
  const auto both = [&] {
    forward(shares.data());
    cpu::posteriors({batch, {losses.data(), true}, shares.data(), {posteriors.data(), 2 * slots, false}, nullptr}, 0,
                    B);
  };
  both();

  double loss_error = 0, posterior_error = 0;
  for (int64_t b = 0; b < B; b++) {
    const auto at = [&](int64_t t, int64_t u) { return t * (U + 2) + u; };
    const auto of = [&](const std::vector<float>& planes, int64_t plane, int64_t t, int64_t u) {
      return static_cast<double>(planes[plane * slots + layout.slot(t + u, u)]);
    };
    std::vector<double> beta((T + 1) * (U + 2), -INFINITY), occupancy((T + 1) * (U + 2));
    beta[at(T, U)] = 0;
    occupancy[0] = 1;
    const auto by_blank = [&](int64_t t, int64_t u) { return std::log(of(arcs, 4 * b, t, u)) + beta[at(t + 1, u)]; };
    const auto by_label = [&](int64_t t, int64_t u) {
      return std::log(of(arcs, 4 * b + 2, t, u)) + beta[at(t, u + 1)];
    };
    for (int64_t t = T - 1; t >= 0; t--)
      for (int64_t u = U; u >= 0; u--) beta[at(t, u)] = log_add(by_blank(t, u), by_label(t, u));
    loss_error = std::max(loss_error, std::abs(losses[b] / -beta[0] - 1));
    for (int64_t t = 0; t < T; t++) {
      for (int64_t u = 0; u <= U; u++) {
        const double node = occupancy[at(t, u)], blank = node * std::exp(by_blank(t, u) - beta[at(t, u)]);
        const double label = node * std::exp(by_label(t, u) - beta[at(t, u)]);
        occupancy[at(t + 1, u)] += blank, occupancy[at(t, u + 1)] += label;
        posterior_error = std::max({posterior_error, std::abs(of(posteriors, 2 * b, t, u) - blank),
                                    std::abs(of(posteriors, 2 * b + 1, t, u) - label)});
      }
    }
  }
  std::printf("%g %g\n", loss_error, posterior_error);

  const auto nanoseconds_per_cell = [&](auto work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count() / batch.rows();
  };
  for (int64_t round = 0; round < rounds; round++) {
    const double alone = nanoseconds_per_cell([&] { forward(nullptr); });
    std::printf("%g %g\n", alone, nanoseconds_per_cell(both));
  }
}
