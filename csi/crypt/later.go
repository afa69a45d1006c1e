package crypt

import (
	"fmt"
	"io"

	"github.com/kubeveil/kubeveil/csi/internal/blk"
)

// Later returns the highest epoch above the given one that a record on the disk claims for the
// volume, or 0 if there is none. It verifies nothing and needs no key. That is safe because the
// caller only stops writing: an attacker who can forge a record can destroy the volume anyway.
func Later(d io.ReaderAt, u UUID, epoch uint64) (later uint64, err error) {
	b := blk.Buffer(recordSize)
	for _, at := range []int64{recordA, recordB} {
		if n, err := d.ReadAt(b, at); n < len(b) {
			return 0, fmt.Errorf("read the record at %d: %w", at, err)
		}
		if string(b[:len(recordMagic)]) != recordMagic {
			continue
		}
		if r, version := parse(b); version == recordVersion && r.UUID == u && r.Epoch > epoch {
			later = max(later, r.Epoch)
		}
	}
	return later, nil
}
