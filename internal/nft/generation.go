package nft

import (
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Quiet calls read, and reports whether nothing of nftables changed meanwhile in the network
// namespace of the calling thread: then all that was read is of one moment.
func Quiet(read func() error) (quiet bool, err error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return false, fmt.Errorf("open nftables: %w", err)
	}
	before, err := generation(c)
	if err == nil {
		err = read()
	}
	if err == nil {
		var after string
		after, err = generation(c)
		quiet = before == after
	}
	return quiet && err == nil, errors.Join(err, c.Close())
}

// generation returns the number of the ruleset, which each transaction changes.
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
