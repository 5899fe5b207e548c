package chat

import _ "embed"

// Template is the format as a Jinja chat template, for servers that render chats themselves (vLLM, transformers). It
// gives what Render gives; enable_thinking and keep_thinking are its options.
//
//go:embed template.jinja
var Template string
