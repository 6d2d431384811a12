// The CPU kernels without torch: prints losses, and a hash of every bit of what they return, for test_isa.py.
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

// Ranges of rows of every length that is no whole block.
void in_parts(void (*function)(const TdtParams&, int64_t, int64_t), const TdtParams& p, int64_t rows) {
  for (int64_t first = 1; first <= 16; first++) function(p, 0, first), function(p, first, rows);
}

// A transducer with durations, whose rows have the logits of these for a tail.
void run_tdt(int64_t V, int64_t D, uint32_t seed) {
  const int64_t B = 2, T = 21, U = 18, K = 2 * D - 1;
  const auto random = [&] { return seed = seed * 1664525u + 1013904223u, seed >> 8; };
  std::vector<float> x(B * T * (U + 1) * (V + D)), grad(x.size());
  for (float& value : x) value = (random() * 0x1p-24f - 0.5f) * 12;
  std::vector<int64_t> labels(B * U), input_lengths{T, 17}, label_lengths{U, 11};
  for (int64_t& label : labels) label = 1 + random() % (V - 1);
  const Integers frames{input_lengths.data(), true}, lengths{label_lengths.data(), true};
  const Batch batch{B, T, U + 1, V, {labels.data(), true}, frames, lengths, 0, kStandard};
  const int64_t rows = batch.rows();
  std::vector<float> softmax(2 * rows), tail(rows * D), tokens(2 * rows), scores(K * rows), posteriors(K * rows);
  std::vector<float> grad_tokens(2 * rows), grad_tail(rows * D), loss(B);
  const Rows of_x{x.data(), Dtype::kFloat32, T * (U + 1) * (V + D), (U + 1) * (V + D), V + D};
  Rows of_grad = of_x;
  of_grad.data = grad.data();
  const Normalizer normalizer = Normalizer::kSoftmax;
  cpu::score({batch, of_x, normalizer, softmax.data(), {}, {D, tail.data()}, tokens.data()}, 0, rows);

  TdtParams tdt = {};
  tdt.batch = batch, tdt.batch.V = D, tdt.normalizer = normalizer, tdt.durations.count = static_cast<int>(D);
  tdt.logits = {tail.data(), Dtype::kFloat32, T * (U + 1) * D, (U + 1) * D, D};
  ArcLatticeParams lattice = {};
  lattice.B = B, lattice.T = T, lattice.U1 = U + 1, lattice.input_lengths = frames, lattice.label_lengths = lengths;
  lattice.arcs.count = static_cast<int>(K), lattice.arcs.ends_by_blank = true;
  for (int d = 0; d < D; d++) {
    tdt.durations.blank_arc[d] = d > 0 ? tdt.durations.blanks++ : -1;
    if (d > 0) lattice.arcs.arc[d - 1] = {d, 0};
    lattice.arcs.arc[D - 1 + d] = {d, 1};
  }
  tdt.tokens = tokens.data(), tdt.arcs = scores.data();
  in_parts(cpu::tdt_scores, tdt, rows);
  lattice.scores = scores.data(), lattice.loss = {loss.data(), false}, lattice.posteriors = posteriors.data();
  cpu::arc_lattice(lattice, 0, B);
  tdt.arcs = posteriors.data(), tdt.grad_tokens = grad_tokens.data(), tdt.grad_logits = grad_tail.data();
  in_parts(cpu::tdt_scores_backward, tdt, rows);
  std::vector<double> upstream{1.5, -0.25};
  cpu::score_backward({batch,
                       of_x,
                       normalizer,
                       softmax.data(),
                       {},
                       {upstream.data(), true},
                       INFINITY,
                       1,
                       of_grad,
                       {D, grad_tail.data(), 0.01},
                       grad_tokens.data()},
                      0, rows);
  Hash hash;
  hash.add(tail), hash.add(tokens), hash.add(scores), hash.add(posteriors), hash.add(grad), hash.add(loss);
  std::printf("%lld + %lld %.6g %.6g %016llx\n", static_cast<long long>(V), static_cast<long long>(D), loss[0], loss[1],
              static_cast<unsigned long long>(hash.state));
}

}  // namespace

int main() {
  for (const Normalizer normalizer : {Normalizer::kSoftmax, Normalizer::kHat})
    for (const Topology topology : {kStandard, kModified})
      for (const int64_t V : {2, 3, 15, 16, 17, 40, 129, 1500}) run(normalizer, topology, V, 1);
  for (const int64_t V : {5, 16, 43})
    for (const int64_t D : {2, 5, 16}) run_tdt(V, D, 1);
}
