// Package model is the Qwen3.5 text model: configuration, weights, forward, backward, scoring and decoding, over
// any kernels.Backend.
//
// Start at Load, Model.Forward (forward.go), Model.Backward (backward.go) and Decoder (decoder.go). Axis letters
// are those of package kernels. A Model and everything made from it is used by one goroutine at a time, as its
// backend is.
package model
