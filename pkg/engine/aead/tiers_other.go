//go:build !amd64

package aead

const hasAVX512 = false

// AVX512 is the tier for CPUs with AVX-512. This CPU has none, so it seals and opens one by one.
var AVX512 = Tier{Name: "avx512", Seal: sealEach, Open: openEach}

// lanes and unused are the scratch of tiers with several lanes.
type (
	lanes  struct{ _ [8]byte }
	unused struct{}
)
