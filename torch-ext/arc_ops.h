// The ops at the waist: rows to scores of arcs and back, and the lattice of any arcs between them. What a variant adds
// to the scores is a sum of tensors, made where the variant is (rnnt_loss/lattice.py).
#pragma once

#include <optional>
#include <tuple>
#include <vector>

#include "call.h"

namespace rnnt {

// x: rows of V classes and a tail, [B, T, U + 1, V + tail], or without one packed. The tail is returned by itself.
template <typename Place>
std::tuple<Tensor, Tensor, Tensor> score(const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                                         const Tensor& label_lengths, int64_t blank, const std::string& normalizer,
                                         bool validate, int64_t max_input_length, int64_t tail) {
  const Call call(Place::kSide, "x", x, labels, input_lengths, label_lengths, blank, kStandard, validate,
                  max_input_length, tail);
  const Batch& batch = call.batch;
  Tensor scores = new_tensor(x, {2, batch.B, batch.T, batch.U1}, call.acc_type());
  const Normalizer kind = normalizer_of(normalizer);
  const bool from_logits = kind != Normalizer::kNone;
  Tensor softmax = from_logits ? new_tensor(x, {2, batch.B, batch.T, batch.U1}, call.acc_type())
                               : new_tensor(x, {0}, call.acc_type());
  Tensor of_tail =
      tail ? new_tensor(x, {batch.B, batch.T, batch.U1, tail}, call.acc_type()) : new_tensor(x, {0}, call.acc_type());
  void* softmax_data = from_logits ? softmax.mutable_data_ptr() : nullptr;
  const Tail kept_tail = {tail, of_tail.mutable_data_ptr()};
  Place::each_part(call, call.is_double(), 0, [&](const auto& part, const Planes& none) {
    part.scores({batch, call.rows(), kind, softmax_data, none, kept_tail, scores.mutable_data_ptr()});
  });
  return {scores, softmax, of_tail};
}

// The gradient of x goes to grad_x, which may be x. tail: that of log Z, without the clamp unless clamp_tail.
template <typename Place>
void score_gradient(const Tensor& grad_loss, const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                    const Tensor& label_lengths, const Tensor& softmax, const Tensor& posteriors, int64_t blank,
                    const std::string& normalizer, std::optional<double> clamp, int64_t max_input_length,
                    const std::optional<Tensor>& tail, bool clamp_tail, const Tensor& grad_x) {
  const int64_t columns = tail && tail->dim() == 4 ? tail->size(3) : 0;
  const Call call(Place::kSide, "x", x, labels, input_lengths, label_lengths, blank, kStandard, /*validate=*/false,
                  max_input_length, columns);
  const Batch& batch = call.batch;
  call.check_tensor("grad_loss", grad_loss, {batch.B}, {call.acc_type()});
  call.check_tensor("posteriors", posteriors, {2, batch.B, batch.T, batch.U1}, {call.acc_type()});
  check(clamp.value_or(kNoClamp) > 0, "clamp must be > 0, got ", clamp.value_or(kNoClamp));
  const Tensor upstream = torch::stable::contiguous(grad_loss), kept_softmax = torch::stable::contiguous(softmax);
  const Tensor of_arcs = torch::stable::contiguous(posteriors);
  const void* softmax_data = nullptr;
  const Normalizer kind = normalizer_of(normalizer);
  if (kind != Normalizer::kNone) {
    call.check_tensor("softmax", softmax, {2, batch.B, batch.T, batch.U1}, {call.acc_type()});
    softmax_data = kept_softmax.const_data_ptr();
  }
  Tail of_tail;
  std::optional<Tensor> kept_tail;
  if (tail) {
    call.check_tensor("tail", *tail, {batch.B, batch.T, batch.U1, columns}, {call.acc_type()});
    kept_tail = torch::stable::contiguous(*tail);
    of_tail = {columns, const_cast<void*>(kept_tail->const_data_ptr()),
               clamp_tail ? clamp.value_or(kNoClamp) : kNoClamp};
  }
  Place::each_part(call, call.is_double(), 0, [&](const auto& part, const Planes& none) {
    part.gradient_from_scores({batch, call.rows(), kind, softmax_data, none, per_utterance(upstream),
                               clamp.value_or(kNoClamp), 1.0, rows_of(grad_x), of_tail, of_arcs.const_data_ptr()});
  });
}

template <typename Place>
Tensor score_backward(const Tensor& grad_loss, const Tensor& x, const Tensor& labels, const Tensor& input_lengths,
                      const Tensor& label_lengths, const Tensor& softmax, const Tensor& posteriors, int64_t blank,
                      const std::string& normalizer, std::optional<double> clamp, int64_t max_input_length,
                      std::optional<Tensor> tail, bool clamp_tail) {
  Tensor grad_x = torch::stable::new_empty(x, x.sizes());
  score_gradient<Place>(grad_loss, x, labels, input_lengths, label_lengths, softmax, posteriors, blank, normalizer,
                        clamp, max_input_length, tail, clamp_tail, grad_x);
  return grad_x;
}

// To a tensor there is: x itself, or a part of another.
template <typename Place>
void score_backward_out(const Tensor& grad_x, const Tensor& grad_loss, const Tensor& x, const Tensor& labels,
                        const Tensor& input_lengths, const Tensor& label_lengths, const Tensor& softmax,
                        const Tensor& posteriors, int64_t blank, const std::string& normalizer,
                        std::optional<double> clamp, int64_t max_input_length, std::optional<Tensor> tail,
                        bool clamp_tail) {
  check_overwritable("grad_x", grad_x);
  check(grad_x.device() == x.device(), "grad_x must be on the device of x");
  check_type("grad_x", grad_x, {x.scalar_type()});
  check(text_of(grad_x.sizes()) == text_of(x.sizes()), "grad_x must have shape ", text_of(x.sizes()), ", got ",
        text_of(grad_x.sizes()));
  score_gradient<Place>(grad_loss, x, labels, input_lengths, label_lengths, softmax, posteriors, blank, normalizer,
                        clamp, max_input_length, tail, clamp_tail, grad_x);
}

// The tensors of a head of durations, owned as long as the kernels run.
struct TdtCall {
  Tensor logits, input_lengths, label_lengths;
  TdtParams params;

  TdtCall(Side side, const Tensor& x, const Tensor& T, const Tensor& U, const std::vector<int64_t>& durations,
          const std::string& normalizer)
      : logits(x), input_lengths(T), label_lengths(U) {
    check(x.dim() == 4 && x.size(2) >= 1, "logits must have shape [B, T, U + 1, D], got ", text_of(x.sizes()));
    check_type("logits", x, {ScalarType::Float, ScalarType::Double});
    const int64_t D = x.size(3);
    check(1 <= D && D <= kMostDurations, "logits must be of 1 to ", kMostDurations, " durations, got ", D);
    check(static_cast<int64_t>(durations.size()) == D, "durations must be ", D, ", as the logits are of, got ",
          durations.size());
    params = {};
    params.normalizer = normalizer_of(normalizer), params.wide = x.scalar_type() == ScalarType::Double;
    check(params.normalizer != Normalizer::kHat, "normalizer must be softmax or none, got ", normalizer);
    params.durations.count = static_cast<int>(D);
    for (int64_t d = 0; d < D; d++) params.durations.blank_arc[d] = durations[d] > 0 ? params.durations.blanks++ : -1;
    params.batch = {x.size(0), x.size(1), x.size(2), D, {}, {}, {}, 0, kStandard};
    take_lengths(side, x, "input_lengths", input_lengths, params.batch.B, 1, params.batch.T, false);
    take_lengths(side, x, "label_lengths", label_lengths, params.batch.B, 0, params.batch.U1 - 1, false);
    params.batch.input_lengths = integers_of(input_lengths), params.batch.label_lengths = integers_of(label_lengths);
    if (side == Side::kHost) cpu::instruction_set();  // may throw: on another thread its message would be lost
    if (D > 1 && x.stride(3) != 1) logits = torch::stable::contiguous(x);
    params.logits = rows_of(logits);
  }

  // Another tensor of the call: planes of cells.
  Tensor taken(const char* name, const Tensor& tensor, int64_t planes) const {
    const Batch& batch = params.batch;
    check_type(name, tensor, {logits.scalar_type()});
    check_sizes(name, tensor, {planes, batch.B, batch.T, batch.U1});
    check(tensor.device() == logits.device(), name, " must be on the device of the logits");
    return torch::stable::contiguous(tensor);
  }
};

template <typename Place>
Tensor tdt_scores(const Tensor& scores, const Tensor& logits, const Tensor& input_lengths, const Tensor& label_lengths,
                  std::vector<int64_t> durations, const std::string& normalizer) {
  TdtCall call(Place::kSide, logits, input_lengths, label_lengths, durations, normalizer);
  const Batch& batch = call.params.batch;
  const Tensor tokens = call.taken("scores", scores, 2);
  Tensor arcs = new_tensor(logits, {call.params.durations.arcs(), batch.B, batch.T, batch.U1}, logits.scalar_type());
  call.params.tokens = tokens.const_data_ptr(), call.params.arcs = arcs.mutable_data_ptr();
  Place::tdt_scores(call.logits, call.params);
  return arcs;
}

template <typename Place>
std::tuple<Tensor, Tensor> tdt_scores_backward(const Tensor& grad, const Tensor& logits, const Tensor& input_lengths,
                                               const Tensor& label_lengths, std::vector<int64_t> durations,
                                               const std::string& normalizer) {
  TdtCall call(Place::kSide, logits, input_lengths, label_lengths, durations, normalizer);
  const Batch& batch = call.params.batch;
  const Tensor of_arcs = call.taken("grad", grad, call.params.durations.arcs());
  Tensor grad_scores = new_tensor(logits, {2, batch.B, batch.T, batch.U1}, logits.scalar_type());
  Tensor grad_logits = new_tensor(logits, {batch.B, batch.T, batch.U1, batch.V}, logits.scalar_type());
  call.params.arcs = const_cast<void*>(of_arcs.const_data_ptr());
  call.params.grad_tokens = grad_scores.mutable_data_ptr(), call.params.grad_logits = grad_logits.mutable_data_ptr();
  Place::tdt_scores_backward(call.logits, call.params);
  return {grad_scores, grad_logits};
}

// The tensors of a lattice of any arcs, owned as long as the kernels run.
struct ArcCall {
  Tensor scores, input_lengths, label_lengths;
  ArcLatticeParams params;

  ArcCall(Side side, const Tensor& x, const Tensor& T, const Tensor& U, const std::vector<int64_t>& dt,
          const std::vector<int64_t>& du, bool ends_by_blank, bool validate)
      : scores(x), input_lengths(T), label_lengths(U) {
    check(x.dim() == 4 && x.size(3) >= 1, "scores must have shape [K, B, T, U + 1], got ", text_of(x.sizes()));
    check_type("scores", x, {ScalarType::Float, ScalarType::Double});
    const int64_t K = x.size(0);
    check(1 <= K && K <= kMostArcs, "scores must have 1 to ", kMostArcs, " arcs, got ", K);
    check(static_cast<int64_t>(dt.size()) == K && static_cast<int64_t>(du.size()) == K, "dt and du must have ", K,
          " elements, as scores have arcs, got ", dt.size(), " and ", du.size());
    params = {};
    params.B = x.size(1), params.T = x.size(2), params.U1 = x.size(3);
    params.arcs.count = static_cast<int>(K), params.arcs.ends_by_blank = ends_by_blank;
    for (int64_t k = 0; k < K; k++) {
      check(dt[k] >= 0 && du[k] >= 0 && du[k] <= 1 && dt[k] + du[k] > 0 && dt[k] < kLongestArc, "arc ", k,
            " must lead on, by 0 or 1 label and less than ", kLongestArc, " frames, got dt ", dt[k], " and du ", du[k]);
      params.arcs.arc[k] = {static_cast<int>(dt[k]), static_cast<int>(du[k])};
    }
    take_lengths(side, scores, "input_lengths", input_lengths, params.B, 1, params.T, validate);
    take_lengths(side, scores, "label_lengths", label_lengths, params.B, 0, params.U1 - 1, validate);
    params.input_lengths = integers_of(input_lengths), params.label_lengths = integers_of(label_lengths);
    if (side == Side::kHost) cpu::instruction_set();  // may throw: on another thread its message would be lost
    scores = torch::stable::contiguous(scores);
    params.scores = scores.const_data_ptr(), params.wide = x.scalar_type() == ScalarType::Double;
  }

 private:
  static constexpr int64_t kLongestArc = 1 << 20;
};

template <typename Place>
std::tuple<Tensor, Tensor> lattice(const Tensor& scores, const Tensor& input_lengths, const Tensor& label_lengths,
                                   std::vector<int64_t> dt, std::vector<int64_t> du, bool ends_by_blank, bool keep,
                                   bool validate) {
  ArcCall call(Place::kSide, scores, input_lengths, label_lengths, dt, du, ends_by_blank, validate);
  Tensor loss = new_tensor(scores, {scores.size(1)}, scores.scalar_type());
  Tensor posteriors =
      keep ? torch::stable::new_empty(scores, scores.sizes())
           : new_tensor(scores, {0, scores.size(1), scores.size(2), scores.size(3)}, scores.scalar_type());
  call.params.loss = per_utterance(loss);
  call.params.posteriors = keep ? posteriors.mutable_data_ptr() : nullptr;
  Place::arc_lattice(call.scores, call.params);
  return {loss, posteriors};
}

template <typename Place>
Tensor lattice_derivative(const Tensor& tangent, const Tensor& scores, const Tensor& input_lengths,
                          const Tensor& label_lengths, std::vector<int64_t> dt, std::vector<int64_t> du,
                          bool ends_by_blank) {
  check_type("scores", scores, {ScalarType::Double});
  check_type("tangent", tangent, {ScalarType::Double});
  ArcCall call(Place::kSide, scores, input_lengths, label_lengths, dt, du, ends_by_blank, false);
  check_sizes("tangent", tangent, {scores.size(0), scores.size(1), scores.size(2), scores.size(3)});
  check(tangent.device() == scores.device(), "tangent must be on the device of the scores");
  const Tensor along = torch::stable::contiguous(tangent);
  Tensor loss = new_tensor(scores, {scores.size(1)}, scores.scalar_type());
  Tensor posteriors = torch::stable::new_empty(scores, scores.sizes());
  Tensor derivative = torch::stable::new_empty(scores, scores.sizes());
  call.params.loss = per_utterance(loss), call.params.posteriors = posteriors.mutable_data_ptr();
  call.params.tangent = data_of<double>(along);
  call.params.derivative = static_cast<double*>(derivative.mutable_data_ptr());
  Place::arc_lattice(call.scores, call.params);
  return derivative;
}

// As many samples as there are rows of uniforms; without, the best path.
template <typename Place>
std::tuple<Tensor, Tensor, Tensor> paths(const Tensor& scores, const Tensor& input_lengths, const Tensor& label_lengths,
                                         std::vector<int64_t> dt, std::vector<int64_t> du, bool ends_by_blank,
                                         std::optional<Tensor> uniforms) {
  ArcCall call(Place::kSide, scores, input_lengths, label_lengths, dt, du, ends_by_blank, false);
  const int64_t B = call.params.B, T = call.params.T, U1 = call.params.U1;
  PathParams params = {call.params, 1};
  if (uniforms) {
    check_type("uniforms", *uniforms, {ScalarType::Double});
    check(uniforms->dim() == 3, "uniforms must have shape [n, B, T + U + 1], got ", text_of(uniforms->sizes()));
    params.n = uniforms->size(0);
    check_sizes("uniforms", *uniforms, {params.n, B, T + U1});
    check(uniforms->device() == scores.device(), "uniforms must be on the device of the scores");
    uniforms = torch::stable::contiguous(*uniforms);
    params.uniforms = data_of<double>(*uniforms);
  }
  Tensor frames = new_tensor(scores, {params.n, B, U1 - 1}, ScalarType::Long);
  Tensor arcs = new_tensor(scores, {params.n, B, U1 - 1}, ScalarType::Long);
  Tensor score = new_tensor(scores, {B}, ScalarType::Double);
  params.frames = static_cast<int64_t*>(frames.mutable_data_ptr());
  params.path_arcs = static_cast<int64_t*>(arcs.mutable_data_ptr());
  params.score = static_cast<double*>(score.mutable_data_ptr());
  Place::paths(call.scores, params);
  return {frames, arcs, score};
}

}  // namespace rnnt
