// The native ops: schemas, allocation, and which kernels they are made of, written once for the CPU (on_cpu.h) and CUDA
// (on_device.h). This folder has the only C++ that knows torch, through its stable ABI.
#include <torch/csrc/stable/library.h>

#include <optional>
#include <string>
#include <tuple>

#include "arc_ops.h"
#include "call.h"
#include "on_cpu.h"
#include "registration.h"
#if defined(CUDA_KERNEL) || defined(RNNT_EMULATE)
#include "on_device.h"
#endif

namespace {

using namespace rnnt;

template <typename Place>
std::tuple<Tensor, Tensor, Tensor> loss_forward(const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                                                const Tensor& label_lengths, int64_t blank,
                                                const std::string& normalizer, const std::string& topology,
                                                std::optional<double>, double, bool, bool keep, bool validate,
                                                int64_t max_input_length) {
  const Call call(Place::kSide, "x", x, labels, input_lengths, label_lengths, blank, topology_of(topology), validate,
                  max_input_length);
  const Batch& batch = call.batch;
  Tensor loss = new_tensor(x, {batch.B}, call.acc_type());
  Tensor shares = new_tensor(x, {batch.B, keep ? call.slots() : 0}, call.acc_type());
  const Normalizer kind = normalizer_of(normalizer);
  const bool keeps_softmax = keep && kind != Normalizer::kNone;
  Tensor softmax = keeps_softmax ? new_tensor(x, {2, batch.B, batch.T, batch.U1}, call.acc_type())
                                 : new_tensor(x, {0}, call.acc_type());
  void* softmax_data = keeps_softmax ? softmax.mutable_data_ptr() : nullptr;
  void* share_data = keep ? shares.mutable_data_ptr() : nullptr;
  Place::each_part(call, call.is_double(), 4, [&](const auto& part, const Planes& arcs) {
    part.loss({batch, call.rows(), kind, softmax_data, arcs}, {batch, arcs, per_utterance(loss), share_data, nullptr});
  });
  return {loss, softmax, shares};
}

// The gradient of x goes to grad_x, which may be x.
template <typename Place>
void loss_gradient(const Tensor& grad_loss, const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                   const Tensor& label_lengths, const Tensor& loss, const Tensor& softmax, const Tensor& shares,
                   int64_t blank, const std::string& normalizer, const std::string& topology,
                   std::optional<double> clamp, double fastemit_lambda, int64_t max_input_length,
                   const Tensor& grad_x) {
  const Call call(Place::kSide, "x", x, labels, input_lengths, label_lengths, blank, topology_of(topology),
                  /*validate=*/false, max_input_length);
  const Batch& batch = call.batch;
  call.check_tensor("grad_loss", grad_loss, {batch.B}, {call.acc_type()});
  call.check_tensor("loss", loss, {batch.B}, {call.acc_type()});
  call.check_tensor("shares", shares, {batch.B, call.slots()}, {call.acc_type()});
  check(clamp.value_or(kNoClamp) > 0, "clamp must be > 0, got ", clamp.value_or(kNoClamp));
  check(0 <= fastemit_lambda && fastemit_lambda < INFINITY, "fastemit_lambda must be finite and >= 0, got ",
        fastemit_lambda);
  const Tensor upstream = torch::stable::contiguous(grad_loss), losses = torch::stable::contiguous(loss);
  const Tensor kept_shares = torch::stable::contiguous(shares), kept_softmax = torch::stable::contiguous(softmax);
  const void* softmax_data = nullptr;
  const Normalizer kind = normalizer_of(normalizer);
  if (kind != Normalizer::kNone) {
    call.check_tensor("softmax", softmax, {2, batch.B, batch.T, batch.U1}, {call.acc_type()});
    softmax_data = kept_softmax.const_data_ptr();
  }
  Place::each_part(call, call.is_double(), 2, [&](const auto& part, const Planes& posteriors) {
    part.gradient({batch, per_utterance(losses), kept_shares.const_data_ptr(), posteriors, nullptr},
                  {batch, call.rows(), kind, softmax_data, posteriors, per_utterance(upstream),
                   clamp.value_or(kNoClamp), 1 + fastemit_lambda, rows_of(grad_x)});
  });
}

template <typename Place>
Tensor loss_backward(const Tensor& grad_loss, const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                     const Tensor& label_lengths, const Tensor& loss, const Tensor& softmax, const Tensor& shares,
                     int64_t blank, const std::string& normalizer, const std::string& topology,
                     std::optional<double> clamp, double fastemit_lambda, int64_t max_input_length) {
  Tensor grad_x = torch::stable::new_empty(x, x.sizes());
  loss_gradient<Place>(grad_loss, x, labels, input_lengths, label_lengths, loss, softmax, shares, blank, normalizer,
                       topology, clamp, fastemit_lambda, max_input_length, grad_x);
  return grad_x;
}

template <typename Place>
void loss_backward_(const Tensor& grad_loss, const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                    const Tensor& label_lengths, const Tensor& loss, const Tensor& softmax, const Tensor& shares,
                    int64_t blank, const std::string& normalizer, const std::string& topology,
                    std::optional<double> clamp, double fastemit_lambda, int64_t max_input_length) {
  check_overwritable("x", x);
  loss_gradient<Place>(grad_loss, x, labels, input_lengths, label_lengths, loss, softmax, shares, blank, normalizer,
                       topology, clamp, fastemit_lambda, max_input_length, x);
}

template <typename Place>
std::tuple<Tensor, Tensor, Tensor> rnnt_forward(const Tensor& log_probs, const Tensor& labels,
                                                const Tensor& input_lengths, const Tensor& label_lengths,
                                                int64_t blank) {
  const Call call(Place::kSide, "log_probs", log_probs, labels, input_lengths, label_lengths, blank, kStandard);
  const Batch& batch = call.batch;
  Tensor loss = new_tensor(log_probs, {batch.B}, call.acc_type());
  Tensor alpha = new_tensor(log_probs, {batch.B, batch.T, batch.U1}, ScalarType::Double);
  Tensor beta = new_tensor(log_probs, {batch.B, batch.T, batch.U1}, ScalarType::Double);
  double* alphas = static_cast<double*>(alpha.mutable_data_ptr());
  double* betas = static_cast<double*>(beta.mutable_data_ptr());
  Place::each_part(call, /*wide=*/true, 4, [&](const auto& part, const Planes& arcs) {
    part.alpha_beta({batch, call.rows(), Normalizer::kNone, nullptr, arcs},
                    {batch, arcs, per_utterance(loss), alphas, betas, nullptr});
  });
  return {loss, alpha, beta};
}

template <typename Place>
Tensor rnnt_backward(const Tensor& grad_loss, const Tensor& log_probs, const Tensor& labels,
                     const Tensor& input_lengths, const Tensor& label_lengths, const Tensor& alpha, const Tensor& beta,
                     int64_t blank) {
  const Call call(Place::kSide, "log_probs", log_probs, labels, input_lengths, label_lengths, blank, kStandard);
  const Batch& batch = call.batch;
  call.check_tensor("grad_loss", grad_loss, {batch.B}, {call.acc_type()});
  call.check_tensor("alpha", alpha, {batch.B, batch.T, batch.U1}, {ScalarType::Double});
  call.check_tensor("beta", beta, {batch.B, batch.T, batch.U1}, {ScalarType::Double});
  const Tensor upstream = torch::stable::contiguous(grad_loss);
  const Tensor alphas = torch::stable::contiguous(alpha), betas = torch::stable::contiguous(beta);
  Tensor grad_log_probs = new_tensor(log_probs, {batch.B, batch.T, batch.U1, batch.V}, log_probs.scalar_type());
  Place::each_part(call, /*wide=*/true, 2, [&](const auto& part, const Planes& posteriors) {
    part.gradient_from_alpha_beta({batch, call.rows(), data_of<double>(alphas), data_of<double>(betas), posteriors},
                                  {batch, call.rows(), Normalizer::kNone, nullptr, posteriors, per_utterance(upstream),
                                   kNoClamp, 1, rows_of(grad_log_probs)});
  });
  return grad_log_probs;
}

template <typename Place, typename Library>
void implement(Library& ops) {
  ops.impl("loss_forward", TORCH_BOX(&loss_forward<Place>));
  ops.impl("loss_backward", TORCH_BOX(&loss_backward<Place>));
  ops.impl("loss_backward_", TORCH_BOX(&loss_backward_<Place>));
  ops.impl("rnnt_forward", TORCH_BOX(&rnnt_forward<Place>));
  ops.impl("rnnt_backward", TORCH_BOX(&rnnt_backward<Place>));
  ops.impl("score", TORCH_BOX(&score<Place>));
  ops.impl("score_backward", TORCH_BOX(&score_backward<Place>));
  ops.impl("score_backward_out", TORCH_BOX(&score_backward_out<Place>));
  ops.impl("tdt_scores", TORCH_BOX(&tdt_scores<Place>));
  ops.impl("tdt_scores_backward", TORCH_BOX(&tdt_scores_backward<Place>));
  ops.impl("lattice", TORCH_BOX(&lattice<Place>));
  ops.impl("lattice_derivative", TORCH_BOX(&lattice_derivative<Place>));
  ops.impl("paths", TORCH_BOX(&paths<Place>));
}

}  // namespace

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def(
      "loss_forward(Tensor x, Tensor labels, Tensor input_lengths, Tensor label_lengths, int blank, str normalizer, "
      "str topology, float? clamp, float fastemit_lambda, bool inplace_grad, bool keep, bool validate, "
      "SymInt max_input_length=0) -> (Tensor loss, Tensor softmax, Tensor shares)");
  ops.def(
      "loss_backward(Tensor grad_loss, Tensor x, Tensor labels, Tensor input_lengths, Tensor label_lengths, "
      "Tensor loss, Tensor softmax, Tensor shares, int blank, str normalizer, str topology, float? clamp, "
      "float fastemit_lambda, SymInt max_input_length=0) -> Tensor");
  ops.def(
      "loss_backward_(Tensor grad_loss, Tensor(a!) x, Tensor labels, Tensor input_lengths, Tensor label_lengths, "
      "Tensor loss, Tensor softmax, Tensor shares, int blank, str normalizer, str topology, float? clamp, "
      "float fastemit_lambda, SymInt max_input_length=0) -> ()");
  ops.def(
      "rnnt_forward(Tensor log_probs, Tensor labels, Tensor input_lengths, Tensor label_lengths, int blank) "
      "-> (Tensor loss, Tensor alpha, Tensor beta)");
  ops.def(
      "rnnt_backward(Tensor grad_loss, Tensor log_probs, Tensor labels, Tensor input_lengths, Tensor label_lengths, "
      "Tensor alpha, Tensor beta, int blank) -> Tensor");
  ops.def(
      "score(Tensor x, Tensor labels, Tensor input_lengths, Tensor label_lengths, int blank, str normalizer, "
      "bool validate, SymInt max_input_length=0, int tail=0) -> (Tensor scores, Tensor softmax, Tensor tail)");
  ops.def(
      "score_backward(Tensor grad_loss, Tensor x, Tensor labels, Tensor input_lengths, Tensor label_lengths, "
      "Tensor softmax, Tensor posteriors, int blank, str normalizer, float? clamp, SymInt max_input_length=0, "
      "Tensor? tail=None, bool clamp_tail=True) -> Tensor");
  ops.def(
      "score_backward_out(Tensor(a!) grad_x, Tensor grad_loss, Tensor x, Tensor labels, Tensor input_lengths, "
      "Tensor label_lengths, Tensor softmax, Tensor posteriors, int blank, str normalizer, float? clamp, "
      "SymInt max_input_length=0, Tensor? tail=None, bool clamp_tail=True) -> ()");
  ops.def(
      "tdt_scores(Tensor scores, Tensor logits, Tensor input_lengths, Tensor label_lengths, int[] durations, "
      "str normalizer) -> Tensor");
  ops.def(
      "tdt_scores_backward(Tensor grad, Tensor logits, Tensor input_lengths, Tensor label_lengths, int[] durations, "
      "str normalizer) -> (Tensor grad_scores, Tensor grad_logits)");
  ops.def(
      "lattice(Tensor scores, Tensor input_lengths, Tensor label_lengths, int[] dt, int[] du, bool ends_by_blank, "
      "bool keep, bool validate) -> (Tensor loss, Tensor posteriors)");
  ops.def(
      "lattice_derivative(Tensor tangent, Tensor scores, Tensor input_lengths, Tensor label_lengths, int[] dt, "
      "int[] du, bool ends_by_blank) -> Tensor");
  ops.def(
      "paths(Tensor scores, Tensor input_lengths, Tensor label_lengths, int[] dt, int[] du, bool ends_by_blank, "
      "Tensor? uniforms) -> (Tensor frames, Tensor arcs, Tensor score)");
}

#if defined(RNNT_EMULATE)  // the tests' device, whose memory is the CPU's
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { implement<OnDevice>(ops); }
#else
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { implement<OnCpu>(ops); }
#if defined(CUDA_KERNEL)
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) { implement<OnDevice>(ops); }
#endif
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
