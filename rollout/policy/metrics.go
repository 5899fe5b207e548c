package policy

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are vLLM's names, as far as they mean something here. The labels model_name and engine are added when
// the server registers them.
type metrics struct {
	running, waiting, usage                        prometheus.Gauge
	promptTokens, cachedTokens, generationTokens   prometheus.Counter
	queries, hits, preemptions, corrupted          prometheus.Counter
	rejected                                       prometheus.Counter
	success                                        *prometheus.CounterVec
	ttft, e2e, queue, prefill, decode, inter       prometheus.Histogram
	promptSize, generationSize, iterationTokens, n prometheus.Histogram
	all                                            []prometheus.Collector
}

var (
	secondsBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}
	tokenBuckets   = prometheus.ExponentialBuckets(1, 2, 18)
)

func newMetrics() *metrics {
	m := &metrics{}
	m.running = m.gauge("vllm:num_requests_running", "Sequences in the batch.")
	m.waiting = m.gauge("vllm:num_requests_waiting", "Sequences waiting.")
	m.usage = m.gauge("vllm:kv_cache_usage_perc", "Share of the cache in use, 0..1.")
	m.promptTokens = m.counter("vllm:prompt_tokens_total", "Prompt tokens of started sequences.")
	m.cachedTokens = m.counter("vllm:prompt_tokens_cached_total", "Prompt tokens whose state was reused.")
	m.generationTokens = m.counter("vllm:generation_tokens_total", "Sampled tokens.")
	m.queries = m.counter("vllm:prefix_cache_queries_total", "Tokens looked up in the prefix cache.")
	m.hits = m.counter("vllm:prefix_cache_hits_total", "Tokens found in the prefix cache.")
	m.preemptions = m.counter("vllm:num_preemptions_total", "Sequences sent back to the queue for room.")
	m.corrupted = m.counter("vllm:corrupted_requests_total", "Requests ended by a log-prob that was not finite.")
	m.rejected = m.counter("vllm:admission_rejections_total", "Requests refused because the queue was full.")
	m.success = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total", Help: "Ended sequences by reason."}, []string{"finished_reason"})
	m.all = append(m.all, m.success)
	for _, r := range []string{"stop", "length", "abort", "error"} {
		m.success.WithLabelValues(r)
	}
	m.ttft = m.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", secondsBuckets)
	m.e2e = m.histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", secondsBuckets)
	m.queue = m.histogram("vllm:request_queue_time_seconds", "From arrival to the first step.", secondsBuckets)
	m.prefill = m.histogram("vllm:request_prefill_time_seconds", "From the first step to the first token.", secondsBuckets)
	m.decode = m.histogram("vllm:request_decode_time_seconds", "From the first token to the last.", secondsBuckets)
	m.inter = m.histogram("vllm:request_time_per_output_token_seconds", "Mean time between tokens of a sequence.", secondsBuckets)
	m.promptSize = m.histogram("vllm:request_prompt_tokens", "Prompt lengths.", tokenBuckets)
	m.generationSize = m.histogram("vllm:request_generation_tokens", "Lengths of what was sampled.", tokenBuckets)
	m.iterationTokens = m.histogram("vllm:iteration_tokens_total", "Tokens of one step.", tokenBuckets)
	m.n = m.histogram("vllm:request_params_n", "Samples asked for.", tokenBuckets)
	return m
}

func (m *metrics) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	m.all = append(m.all, g)
	return g
}

func (m *metrics) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	m.all = append(m.all, c)
	return c
}

func (m *metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.all = append(m.all, h)
	return h
}

// handler serves the metrics under the model's name.
func (m *metrics) handler(model string) http.Handler {
	reg := prometheus.NewRegistry()
	wrapped := prometheus.WrapRegistererWith(prometheus.Labels{"model_name": model, "engine": "0"}, reg)
	wrapped.MustRegister(m.all...)
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}

func (m *metrics) observe(h prometheus.Histogram, d time.Duration) { h.Observe(d.Seconds()) }

func (m *metrics) finished(reason string) { m.success.WithLabelValues(reason).Inc() }

func (m *metrics) observeQueues(running, waiting int, dec Decoder) {
	m.running.Set(float64(running))
	m.waiting.Set(float64(waiting))
	m.usage.Set(dec.Used())
}

func (m *metrics) observeStart(s *sample, cached int) {
	m.promptTokens.Add(float64(s.prompt))
	m.cachedTokens.Add(float64(cached))
	m.queries.Add(float64(s.prompt))
	m.hits.Add(float64(cached))
	m.promptSize.Observe(float64(s.prompt))
	m.observe(m.queue, s.started.Sub(s.job.arrived))
	if s.index == 0 {
		m.n.Observe(float64(s.params.N))
	}
}

func (m *metrics) iteration(work []Work) {
	n := 0
	for _, w := range work {
		n += len(w.Tokens)
	}
	m.iterationTokens.Observe(float64(n))
}

func (m *metrics) token(s *sample) {
	m.generationTokens.Inc()
	if s.generated() == 1 {
		m.observe(m.ttft, s.first.Sub(s.job.arrived))
		m.observe(m.prefill, s.first.Sub(s.started))
	}
}

func (m *metrics) observeSample(s *sample, reason string) {
	m.finished(reason)
	n := s.generated()
	m.generationSize.Observe(float64(n))
	if n == 0 {
		return
	}
	d := time.Since(s.first)
	m.observe(m.decode, d)
	if n > 1 {
		m.observe(m.inter, d/time.Duration(n-1))
	}
}
