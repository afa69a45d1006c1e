package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nfnl"
)

// The kernel numbers the ruleset of a network namespace: each transaction of any program adds one
// to the generation. While the kernel has the generation that PolicyTable recorded, PolicyTable
// need not read the table.

// generation returns the kernel's generation of the ruleset, which is never 0.
func generation(c *nfnl.Conn) (n uint32, err error) {
	var request nfnl.Messages
	request.Begin(kindOf(unix.NFT_MSG_GETGEN), 0, unix.AF_UNSPEC)
	err = c.Get(&request, func(attributes []byte) error {
		if id := nfnl.Find(attributes, unix.NFTA_GEN_ID); len(id) == 4 {
			n = binary.BigEndian.Uint32(id)
		}
		return nil
	})
	if err == nil && n == 0 {
		err = errors.New("the kernel did not return it")
	}
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	return n, nil
}

// standsLocked reports whether the ruleset is unchanged since the table was read.
func (t *PolicyTable) standsLocked(c *nfnl.Conn) (bool, error) {
	if !t.read || t.generation == 0 {
		return false, nil
	}
	now, err := generation(c)
	return err == nil && now == t.generation, err
}

// commitLocked commits a transaction. The table need not be read again if no other process changed
// the ruleset since it was read.
func (t *PolicyTable) commitLocked(c *nfnl.Conn, tx *transaction) error {
	stands, err := t.standsLocked(c)
	if err != nil {
		return err
	}
	if err := tx.commit(c); err != nil {
		return err
	}
	before := t.generation
	if t.generation = 0; !stands {
		return nil
	}
	now, err := generation(c)
	if err == nil && now == before+1 {
		t.generation = now
	}
	return err
}
