#include "textflag.h"

// func clearVectors(avx, avx512vl bool)
// VZEROALL clears registers 0 to 15 in their whole width (Intel SDM, volume 2). 16 to 31 exist with
// AVX-512 only: an instruction of 128 bits clears their upper bits, too, and does not lower the clock
// of the CPU. Go's ABI keeps X15 zero.
TEXT ·clearVectors(SB), NOSPLIT, $0-2
	CMPB avx512vl+1(FP), $1
	JNE  avx
	VPXORD X16, X16, X16
	VPXORD X17, X17, X17
	VPXORD X18, X18, X18
	VPXORD X19, X19, X19
	VPXORD X20, X20, X20
	VPXORD X21, X21, X21
	VPXORD X22, X22, X22
	VPXORD X23, X23, X23
	VPXORD X24, X24, X24
	VPXORD X25, X25, X25
	VPXORD X26, X26, X26
	VPXORD X27, X27, X27
	VPXORD X28, X28, X28
	VPXORD X29, X29, X29
	VPXORD X30, X30, X30
	VPXORD X31, X31, X31
avx:
	CMPB avx+0(FP), $1
	JNE  sse
	VZEROALL
	RET
sse:
	XORPS X0, X0
	XORPS X1, X1
	XORPS X2, X2
	XORPS X3, X3
	XORPS X4, X4
	XORPS X5, X5
	XORPS X6, X6
	XORPS X7, X7
	XORPS X8, X8
	XORPS X9, X9
	XORPS X10, X10
	XORPS X11, X11
	XORPS X12, X12
	XORPS X13, X13
	XORPS X14, X14
	XORPS X15, X15
	RET
