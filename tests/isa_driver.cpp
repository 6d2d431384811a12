// The CPU kernels without torch: prints losses, and a hash of every bit of softmax, gradient and loss, for test_isa.py.
#include <cmath>
#include <cstdio>
#include <vector>

#include "../rnnt_loss/backend.h"

using namespace rnnt;

namespace {

struct Hash {
  uint64_t state = 1469598103934665603ull;

  template <typename T>
  void add(const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (size_t i = 0; i < values.size() * sizeof(T); i++) state = (state ^ bytes[i]) * 1099511628211ull;
  }
};

void run(Normalizer normalizer, Topology topology, int64_t V, uint32_t seed) {
  const int64_t B = 2, T = 23, U = 19;
  const auto random = [&] { return seed = seed * 1664525u + 1013904223u, seed >> 8; };
  std::vector<float> x(B * T * (U + 1) * V), grad(x.size());
  for (float& value : x) value = (random() * 0x1p-24f - 0.5f) * 12;
  std::vector<int64_t> labels(B * U), input_lengths{T, 17}, label_lengths{U, 11};
  for (int64_t& label : labels) label = 1 + random() % (V - 1);
  const Batch batch{
      B, T, U + 1, V, {labels.data(), true}, {input_lengths.data(), true}, {label_lengths.data(), true}, 0, topology};
  const int64_t slots = batch.layout().slots();
  std::vector<float> arcs(4 * B * slots), softmax(2 * batch.rows()), shares(B * slots), posteriors(2 * B * slots);
  std::vector<double> loss(B), upstream{1.5, -0.25};
  const Rows rows{x.data(), Dtype::kFloat32, T * (U + 1) * V, (U + 1) * V, V};
  Rows grad_rows = rows;
  grad_rows.data = grad.data();
  const Planes arc_planes{arcs.data(), 4 * slots, false}, posterior_planes{posteriors.data(), 2 * slots, false};
  cpu::score({batch, rows, normalizer, softmax.data(), arc_planes}, 0, batch.rows());
  cpu::lattice({batch, arc_planes, {loss.data(), true}, shares.data(), nullptr}, 0, B);
  cpu::posteriors({batch, {loss.data(), true}, shares.data(), posterior_planes, nullptr}, 0, B);
  cpu::score_backward(
      {batch, rows, normalizer, softmax.data(), posterior_planes, {upstream.data(), true}, INFINITY, 1.25, grad_rows},
      0, batch.rows());
  const std::vector<float> losses(loss.begin(), loss.end());
  Hash hash;
  hash.add(softmax), hash.add(grad), hash.add(losses);
  std::printf("%lld %.6g %.6g %016llx\n", static_cast<long long>(V), loss[0], loss[1],
              static_cast<unsigned long long>(hash.state));
}

}  // namespace

int main() {
  for (const Normalizer normalizer : {Normalizer::kSoftmax, Normalizer::kHat})
    for (const Topology topology : {kStandard, kModified})
      for (const int64_t V : {2, 3, 15, 16, 17, 40, 129, 1500}) run(normalizer, topology, V, 1);
}
