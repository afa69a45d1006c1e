package powercut

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/kubeveil/kubeveil/csi/keyring"
)

// The disk whose writes are logged: two partitions, one for the volume and one for marks.
const (
	volumeStart = 1 << 20
	volumeSize  = 256 << 20
	marksStart  = volumeStart + volumeSize
	marksSize   = 1 << 20
	diskSize    = marksStart + marksSize
	// diskSerial is what the machine knows it by.
	diskSerial = "powercut"
)

const (
	volumeID = "v"
	nodeName = "node-1"
	cluster  = "c0ffee00-0000-4000-8000-000000000001"
	// firstPayload is the size of the volume until it is expanded to lastPayload.
	firstPayload = 128 << 20
	lastPayload  = volumeSize - 4<<20
)

// partitionTable is sector 0 of the disk.
func partitionTable() []byte {
	b := make([]byte, minSector)
	for i, part := range [][2]uint32{{volumeStart, volumeSize}, {marksStart, marksSize}} {
		e := b[446+16*i:]
		e[4] = 0x83
		binary.LittleEndian.PutUint32(e[8:], part[0]/minSector)
		binary.LittleEndian.PutUint32(e[12:], part[1]/minSector)
	}
	b[510], b[511] = 0x55, 0xaa
	return b
}

// testKeys is the same in the machine and here.
func testKeys(t *testing.T) keyring.Provider {
	t.Helper()
	kek := make([]byte, keyring.KEKSize)
	copy(kek, "power cut test")
	p, err := keyring.FromSecrets(map[string]string{
		keyring.SecretKey: base64.StdEncoding.EncodeToString(kek)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func fileName(i int) string { return fmt.Sprintf("f%06d", i) }

// fileContent is the content of file i: different bytes for each, and not a whole number of blocks.
func fileContent(i int) []byte {
	b := make([]byte, 0, 12000)
	for n := 0; len(b) < 11000+i%1000; n++ {
		b = fmt.Appendf(b, "file %d line %d\n", i, n)
	}
	return b
}
