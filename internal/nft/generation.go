package nft

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Quiet calls read and reports whether the ruleset in the network namespace of c did not change
// during the call. If so, everything that read has read is from one version of the ruleset.
func (c *Conn) Quiet(read func() error) (quiet bool, err error) {
	before, err := generation(c.socket)
	if err != nil {
		return false, err
	}
	if err := read(); err != nil {
		return false, err
	}
	after, err := generation(c.socket)
	return err == nil && before == after, err
}

// generation returns the generation ID of the ruleset, which changes with each transaction.
func generation(c *netlink.Conn) (string, error) {
	answers, err := c.Execute(netlink.Message{
		Header: netlink.Header{Flags: netlink.Request,
			Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN},
		Data: make([]byte, 4), // struct nfgenmsg
	})
	if err != nil {
		return "", fmt.Errorf("read the generation of nftables: %w", err)
	}
	for _, a := range answers {
		attributes, err := netlink.NewAttributeDecoder(a.Data[min(4, len(a.Data)):])
		if err != nil {
			return "", fmt.Errorf("read the generation of nftables: %w", err)
		}
		for attributes.Next() {
			if attributes.Type() == unix.NFTA_GEN_ID {
				return string(attributes.Bytes()), nil
			}
		}
	}
	return "", errors.New("the kernel does not tell the generation of nftables")
}
