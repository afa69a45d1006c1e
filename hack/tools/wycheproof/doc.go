// Package wycheproof pins the module of Wycheproof's vectors. The test of pkg/engine/aead reads them
// there.
package wycheproof

import _ "github.com/c2sp/wycheproof" // for its folder testvectors_v1
