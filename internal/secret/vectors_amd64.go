package secret

import "golang.org/x/sys/cpu"

// clearVectors overwrites the vector registers: 0 to 15 with avx, and 16 to 31 with avx512vl, too.
func clearVectors(avx, avx512vl bool)

func scrubVectors() { clearVectors(cpu.X86.HasAVX, cpu.X86.HasAVX512VL) }
