//go:build !amd64

package aead

const hasAVX512 = false

// AVX512 is the tier for CPUs with AVX-512. On this architecture it is the same as XCrypto, and
// unused.
var AVX512 = Tier{Name: "avx512", Seal: sealEach, Open: openEach}

// lanes and unused are the scratch memory of tiers with several lanes, which do not exist here.
type (
	lanes  struct{ _ [8]byte }
	unused struct{}
)
