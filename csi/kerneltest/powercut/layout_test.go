package powercut

import (
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
)

const (
	volumeID = "v"
	nodeName = "node-1"
	cluster  = "c0ffee00-0000-4000-8000-000000000001"
	// firstPayload is the size of the volume until it is expanded to lastPayload.
	firstPayload = 128 << 20
	lastPayload  = volumeSize - 4<<20
)

// testKeys returns the same keys in the machine and on this host.
func testKeys(t *testing.T) keyring.Provider {
	t.Helper()
	kek := make([]byte, keyring.KEKSize)
	copy(kek, "power cut test")
	p, err := keyring.FromSecrets(map[string]string{
		keyring.SecretKey: base64.StdEncoding.EncodeToString(kek)})
	errtest.Must(t, err)
	return p
}

func fileName(i int) string { return fmt.Sprintf("f%06d", i) }

// fileContent returns the content of file i. It differs for each file, and its size is not a
// multiple of the block size.
func fileContent(i int) []byte {
	b := make([]byte, 0, 12000)
	for n := 0; len(b) < 11000+i%1000; n++ {
		b = fmt.Appendf(b, "file %d line %d\n", i, n)
	}
	return b
}
