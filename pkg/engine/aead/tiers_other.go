package aead

const hasAVX512 = false

// AVX512 is the tier for CPUs with AVX-512.
var AVX512 = Tier{Name: "avx512", Seal: sealEach, Open: openEach}

// lanes is the scratch of tiers with several lanes.
type lanes struct{ _ [8]byte }
