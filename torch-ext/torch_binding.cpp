// The native ops: schemas, allocation, and work handed to threads. With call.h the only C++ that knows torch, through
// its stable ABI.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "../rnnt_loss/backend.h"
#include "call.h"
#include "registration.h"

namespace {

using namespace rnnt;

// ---- threads

// Spreads the rows of one utterance over threads, or takes them itself where its caller is one of many threads.
struct RowRunner {
  const Batch& batch;
  bool parallel;

  template <typename Params>
  void operator()(void (*function)(const Params&, int64_t, int64_t), const Params& params, int64_t b) const {
    const int64_t rows = batch.T * batch.U1, first = b * rows, grain = std::max<int64_t>(1, kGrain / batch.V);
    if (!parallel) return function(params, first, first + rows);
    torch::stable::parallel_for(first, first + rows, grain, [&](int64_t r, int64_t end) { function(params, r, end); });
  }
  static constexpr int64_t kGrain = 65536;  // elements: what a thread is worth waking for
};

// Calls work(b, planes, run_rows) for every utterance, which is finished, rows and lattice, while it is in the cache.
// Many utterances go to threads whole; few, one after the other with their rows on all threads. planes: memory for
// `count` planes, the work's own.
template <typename Work>
void each_utterance(const Batch& batch, bool wide, int count, Work work) {
  const int64_t threads = torch::stable::get_num_threads(), elements = count * batch.layout().slots();
  const bool spread = batch.B >= 2 * threads;
  const auto run = [&](int64_t first, int64_t last) {
    const std::unique_ptr<double[]> memory(new double[wide ? elements : (elements + 1) / 2]);  // not initialized
    for (int64_t b = first; b < last; b++) work(b, Planes{memory.get(), 0, wide}, RowRunner{batch, !spread});
  };
  if (!spread) return run(0, batch.B);
  const int64_t grain = std::max<int64_t>(1, RowRunner::kGrain / std::max<int64_t>(1, batch.T * batch.U1 * batch.V));
  torch::stable::parallel_for(0, batch.B, grain, run);
}

// ---- ops

Normalizer normalizer_of(bool from_logits) { return from_logits ? Normalizer::kSoftmax : Normalizer::kNone; }

std::tuple<Tensor, Tensor, Tensor> loss_forward(const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                                                const Tensor& label_lengths, int64_t blank, bool from_logits,
                                                const std::string& topology, std::optional<double>, bool, bool keep) {
  const Call call("x", x, labels, input_lengths, label_lengths, blank, topology_of(topology));
  const Batch& batch = call.batch;
  Tensor loss = new_tensor(x, {batch.B}, ScalarType::Double);
  Tensor shares = new_tensor(x, {batch.B, keep ? call.slots() : 0}, call.acc_type());
  Tensor softmax = keep && from_logits ? new_tensor(x, {2, batch.B, batch.T, batch.U1}, call.acc_type())
                                       : new_tensor(x, {0}, call.acc_type());
  void* softmax_data = keep && from_logits ? softmax.mutable_data_ptr() : nullptr;
  void* share_data = keep ? shares.mutable_data_ptr() : nullptr;
  double* losses = static_cast<double*>(loss.mutable_data_ptr());
  each_utterance(batch, call.is_double(), 4, [&](int64_t b, const Planes& arcs, const RowRunner& run_rows) {
    run_rows(cpu::score, {batch, call.rows(), normalizer_of(from_logits), softmax_data, arcs}, b);
    cpu::lattice({batch, arcs, losses, share_data}, b, b + 1);
  });
  return {torch::stable::to(loss, call.acc_type()), softmax, shares};
}

// The gradient of x goes to grad_x, which may be x.
void loss_gradient(const Tensor& grad_loss, const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                   const Tensor& label_lengths, const Tensor& loss, const Tensor& softmax, const Tensor& shares,
                   int64_t blank, bool from_logits, const std::string& topology, std::optional<double> clamp,
                   const Tensor& grad_x) {
  const Call call("x", x, labels, input_lengths, label_lengths, blank, topology_of(topology));
  const Batch& batch = call.batch;
  check_tensor("grad_loss", grad_loss, {batch.B}, {call.acc_type()});
  check_tensor("loss", loss, {batch.B}, {call.acc_type()});
  check_tensor("shares", shares, {batch.B, call.slots()}, {call.acc_type()});
  check_type("softmax", softmax, {call.acc_type()});
  if (from_logits) check_sizes("softmax", softmax, {2, batch.B, batch.T, batch.U1});
  check(clamp.value_or(kNoClamp) > 0, "clamp must be > 0, got ", clamp.value_or(kNoClamp));
  const Tensor upstream = contiguous_as(grad_loss, ScalarType::Double);
  const Tensor losses = contiguous_as(loss, ScalarType::Double);
  const Tensor kept_shares = torch::stable::contiguous(shares), kept_softmax = torch::stable::contiguous(softmax);
  each_utterance(batch, call.is_double(), 2, [&](int64_t b, const Planes& posteriors, const RowRunner& run_rows) {
    cpu::posteriors({batch, data_of<double>(losses), kept_shares.const_data_ptr(), posteriors}, b, b + 1);
    run_rows(cpu::score_backward,
             {batch, call.rows(), normalizer_of(from_logits), from_logits ? kept_softmax.const_data_ptr() : nullptr,
              posteriors, data_of<double>(upstream), clamp.value_or(kNoClamp), rows_of(grad_x)},
             b);
  });
}

Tensor loss_backward(const Tensor& grad_loss, const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                     const Tensor& label_lengths, const Tensor& loss, const Tensor& softmax, const Tensor& shares,
                     int64_t blank, bool from_logits, const std::string& topology, std::optional<double> clamp) {
  Tensor grad_x = torch::stable::new_empty(x, x.sizes());
  loss_gradient(grad_loss, x, labels, input_lengths, label_lengths, loss, softmax, shares, blank, from_logits, topology,
                clamp, grad_x);
  return grad_x;
}

void loss_backward_(const Tensor& grad_loss, const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                    const Tensor& label_lengths, const Tensor& loss, const Tensor& softmax, const Tensor& shares,
                    int64_t blank, bool from_logits, const std::string& topology, std::optional<double> clamp) {
  check(x.dim() == 4 && (x.size(3) == 1 || x.stride(3) == 1), "x must be [B, T, U + 1, V] with contiguous rows, got ",
        text_of(x.sizes()), " with strides ", text_of(x.strides()));
  loss_gradient(grad_loss, x, labels, input_lengths, label_lengths, loss, softmax, shares, blank, from_logits, topology,
                clamp, x);
}

std::tuple<Tensor, Tensor, Tensor> rnnt_forward(const Tensor& log_probs, const Tensor& labels,
                                                const Tensor& input_lengths, const Tensor& label_lengths,
                                                int64_t blank) {
  const Call call("log_probs", log_probs, labels, input_lengths, label_lengths, blank, kStandard);
  const Batch& batch = call.batch;
  Tensor loss = new_tensor(log_probs, {batch.B}, ScalarType::Double);
  Tensor alpha = new_tensor(log_probs, {batch.B, batch.T, batch.U1}, ScalarType::Double);
  Tensor beta = new_tensor(log_probs, {batch.B, batch.T, batch.U1}, ScalarType::Double);
  double* losses = static_cast<double*>(loss.mutable_data_ptr());
  double* alphas = static_cast<double*>(alpha.mutable_data_ptr());
  double* betas = static_cast<double*>(beta.mutable_data_ptr());
  each_utterance(batch, /*wide=*/true, 4, [&](int64_t b, const Planes& arcs, const RowRunner& run_rows) {
    run_rows(cpu::score, {batch, call.rows(), Normalizer::kNone, nullptr, arcs}, b);
    cpu::alpha_beta({batch, arcs, losses, alphas, betas}, b, b + 1);
  });
  return {torch::stable::to(loss, call.acc_type()), alpha, beta};
}

Tensor rnnt_backward(const Tensor& grad_loss, const Tensor& log_probs, const Tensor& labels,
                     const Tensor& input_lengths, const Tensor& label_lengths, const Tensor& alpha, const Tensor& beta,
                     int64_t blank) {
  const Call call("log_probs", log_probs, labels, input_lengths, label_lengths, blank, kStandard);
  const Batch& batch = call.batch;
  check_tensor("grad_loss", grad_loss, {batch.B}, {call.acc_type()});
  check_tensor("alpha", alpha, {batch.B, batch.T, batch.U1}, {ScalarType::Double});
  check_tensor("beta", beta, {batch.B, batch.T, batch.U1}, {ScalarType::Double});
  const Tensor upstream = contiguous_as(grad_loss, ScalarType::Double);
  const Tensor alphas = torch::stable::contiguous(alpha), betas = torch::stable::contiguous(beta);
  Tensor grad_log_probs = new_tensor(log_probs, {batch.B, batch.T, batch.U1, batch.V}, log_probs.scalar_type());
  each_utterance(batch, /*wide=*/true, 2, [&](int64_t b, const Planes& posteriors, const RowRunner& run_rows) {
    cpu::posteriors_from_alpha_beta({batch, call.rows(), data_of<double>(alphas), data_of<double>(betas), posteriors},
                                    b, b + 1);
    run_rows(cpu::score_backward,
             {batch, call.rows(), Normalizer::kNone, nullptr, posteriors, data_of<double>(upstream), kNoClamp,
              rows_of(grad_log_probs)},
             b);
  });
  return grad_log_probs;
}

}  // namespace

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def(
      "loss_forward(Tensor x, Tensor labels, Tensor input_lengths, Tensor label_lengths, int blank, bool from_logits, "
      "str topology, float? clamp, bool inplace_grad, bool keep) -> (Tensor loss, Tensor softmax, Tensor shares)");
  ops.def(
      "loss_backward(Tensor grad_loss, Tensor x, Tensor labels, Tensor input_lengths, Tensor label_lengths, "
      "Tensor loss, Tensor softmax, Tensor shares, int blank, bool from_logits, str topology, float? clamp) -> Tensor");
  ops.def(
      "loss_backward_(Tensor grad_loss, Tensor(a!) x, Tensor labels, Tensor input_lengths, Tensor label_lengths, "
      "Tensor loss, Tensor softmax, Tensor shares, int blank, bool from_logits, str topology, float? clamp) -> ()");
  ops.def(
      "rnnt_forward(Tensor log_probs, Tensor labels, Tensor input_lengths, Tensor label_lengths, int blank) "
      "-> (Tensor loss, Tensor alpha, Tensor beta)");
  ops.def(
      "rnnt_backward(Tensor grad_loss, Tensor log_probs, Tensor labels, Tensor input_lengths, Tensor label_lengths, "
      "Tensor alpha, Tensor beta, int blank) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) {
  ops.impl("loss_forward", TORCH_BOX(&loss_forward));
  ops.impl("loss_backward", TORCH_BOX(&loss_backward));
  ops.impl("loss_backward_", TORCH_BOX(&loss_backward_));
  ops.impl("rnnt_forward", TORCH_BOX(&rnnt_forward));
  ops.impl("rnnt_backward", TORCH_BOX(&rnnt_backward));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
