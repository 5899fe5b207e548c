package kernels

import "harness-s/cuda"

const wordsThreads = 256

type fillWordsArgs struct {
	dst   uintptr
	n     int64
	value uint32
	_     uint32
}

type addWordsArgs struct {
	dst, src uintptr
	n        int64
}

var (
	kFillWords = newPlainKernel[fillWordsArgs]("fill_words")
	kAddWords  = newPlainKernel[addWordsArgs]("add_words")
)

// wordsGrid covers n words, at most a few waves of blocks: each thread strides on.
func wordsGrid(n int) dim3 { return grid(min(blocks(n, wordsThreads), 4096), 1, 1) }

// fillWords sets every word to a bit pattern.
func (b *cudaBackend) fillWords(buf Buffer, bits uint32) {
	kFillWords.launch(b, wordsGrid(buf.n), wordsThreads, 0, fillWordsArgs{dst: buf.ptr, n: int64(buf.n), value: bits})
}

// addWords: dst += src, n words of fp32, on the stream given.
func (b *cudaBackend) addWords(s *cuda.Stream, dst, src Buffer, n int) {
	need("addWords", "dst", dst, n)
	need("addWords", "src", src, n)
	kAddWords.launchOn(b, s, wordsGrid(n), wordsThreads, 0, addWordsArgs{dst.ptr, src.ptr, int64(n)})
}
