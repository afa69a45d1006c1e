package nfnl_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/internal/nfnl"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

const nft = unix.NFNL_SUBSYS_NFTABLES << 8

// in runs f with a connection to a network namespace of its own.
func in(t *testing.T, f func(*nfnl.Conn) error) {
	t.Helper()
	nettest.NewNS(t).Run(t, func() error {
		c, err := nfnl.Open()
		if err != nil {
			return err
		}
		return errors.Join(f(c), c.Close())
	})
}

func addTable(m *nfnl.Messages) {
	m.Begin(nft|unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFPROTO_INET)
	m.String(unix.NFTA_TABLE_NAME, "t")
}

func addChain(m *nfnl.Messages, table, name string) {
	m.Begin(nft|unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFPROTO_INET)
	m.String(unix.NFTA_CHAIN_TABLE, table)
	m.String(unix.NFTA_CHAIN_NAME, name)
}

func chains(c *nfnl.Conn) (names map[string]bool, err error) {
	names = map[string]bool{}
	var m nfnl.Messages
	m.Begin(nft|unix.NFT_MSG_GETCHAIN, 0, unix.NFPROTO_INET)
	err = c.Dump(&m, func() { clear(names) }, func(b []byte) error {
		names[nfnl.Text(nfnl.Find(b, unix.NFTA_CHAIN_NAME))] = true
		return nil
	})
	return names, err
}

func TestDumpReturnsAllThatWasCommitted(t *testing.T) {
	const count = 3000 // more than one answer holds
	in(t, func(c *nfnl.Conn) error {
		var m nfnl.Messages
		addTable(&m)
		for i := range count {
			addChain(&m, "t", fmt.Sprint("chain-", i))
		}
		if err := c.Commit(unix.NFNL_SUBSYS_NFTABLES, &m); err != nil {
			return err
		}
		got, err := chains(c)
		if len(got) != count || !got["chain-0"] || !got["chain-2999"] {
			t.Errorf("%d chains were read, want %d", len(got), count)
		}
		return err
	})
}

// If the kernel refuses a message in the middle of a transaction, none of the messages is applied,
// and Commit returns the error of that message.
func TestCommitTakesAllOrNothing(t *testing.T) {
	in(t, func(c *nfnl.Conn) error {
		for range 2 { // A refusal leaves no answer behind.
			var m nfnl.Messages
			addTable(&m)
			addChain(&m, "t", "first")
			addChain(&m, "missing", "second")
			addChain(&m, "t", "third")
			if err := c.Commit(unix.NFNL_SUBSYS_NFTABLES, &m); !errors.Is(err, unix.ENOENT) {
				t.Errorf("error %v, want that the table is missing", err)
			}
		}
		got, err := chains(c)
		if len(got) > 0 {
			t.Errorf("chains %v are left", got)
		}
		return err
	})
}

// Commit also returns an error if the kernel accepts each message but refuses the transaction, here
// because two chains jump to each other.
func TestCommitFailsWhereTheWholeIsRefused(t *testing.T) {
	in(t, func(c *nfnl.Conn) error {
		var m nfnl.Messages
		addTable(&m)
		addChain(&m, "t", "base")
		end := m.Nest(unix.NFTA_CHAIN_HOOK | unix.NLA_F_NESTED)
		m.Uint32(unix.NFTA_HOOK_HOOKNUM, unix.NF_INET_LOCAL_IN)
		m.Uint32(unix.NFTA_HOOK_PRIORITY, 0)
		end()
		m.String(unix.NFTA_CHAIN_TYPE, "filter")
		addChain(&m, "t", "a")
		addChain(&m, "t", "b")
		for _, jump := range [][2]string{{"base", "a"}, {"a", "b"}, {"b", "a"}} {
			m.Begin(nft|unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFPROTO_INET)
			m.String(unix.NFTA_RULE_TABLE, "t")
			m.String(unix.NFTA_RULE_CHAIN, jump[0])
			endRule := m.Nest(unix.NFTA_RULE_EXPRESSIONS | unix.NLA_F_NESTED)
			endElement := m.Nest(unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED)
			m.String(unix.NFTA_EXPR_NAME, "immediate")
			endData := m.Nest(unix.NFTA_EXPR_DATA | unix.NLA_F_NESTED)
			m.Uint32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
			endImmediate := m.Nest(unix.NFTA_IMMEDIATE_DATA | unix.NLA_F_NESTED)
			endVerdict := m.Nest(unix.NFTA_DATA_VERDICT | unix.NLA_F_NESTED)
			verdict := int32(unix.NFT_JUMP)
			m.Uint32(unix.NFTA_VERDICT_CODE, uint32(verdict))
			m.String(unix.NFTA_VERDICT_CHAIN, jump[1])
			for _, end := range []func(){endVerdict, endImmediate, endData, endElement, endRule} {
				end()
			}
		}
		if err := c.Commit(unix.NFNL_SUBSYS_NFTABLES, &m); err == nil {
			t.Error("a loop of chains was taken")
		}
		got, err := chains(c)
		if len(got) > 0 {
			t.Errorf("chains %v are left", got)
		}
		return err
	})
}

// Each message of Send succeeds or fails on its own.
func TestSendCountsWhatIsRefused(t *testing.T) {
	in(t, func(c *nfnl.Conn) error {
		const ctnetlink, deletes, count = 1 << 8, 2, 5000 // IPCTNL_MSG_CT_DELETE
		var m nfnl.Messages
		for range count {
			m.Begin(ctnetlink|deletes, 0, unix.AF_INET)
			tuple := m.Nest(1 | unix.NLA_F_NESTED) // CTA_TUPLE_ORIG
			ip := m.Nest(1 | unix.NLA_F_NESTED)
			m.Bytes(1, []byte{198, 18, 0, 1})
			m.Bytes(2, []byte{198, 18, 0, 2})
			ip()
			proto := m.Nest(2 | unix.NLA_F_NESTED)
			m.Bytes(1, []byte{unix.IPPROTO_TCP})
			m.Bytes(2, []byte{0, 80})
			m.Bytes(3, []byte{0, 80})
			proto()
			tuple()
		}
		if refused, err := c.Send(&m, unix.ENOENT); err != nil || refused != count {
			t.Errorf("%d of %d connections that are not there: %v", refused, count, err)
		}
		if _, err := c.Send(&m, 0); !errors.Is(err, unix.ENOENT) {
			t.Errorf("error %v, want that of the kernel", err)
		}
		return nil
	})
}

func TestAttributesOfWhatWasWritten(t *testing.T) {
	b := nfnl.AppendAttribute(nil, 7, []byte("odd"))
	b = nfnl.AppendAttribute(b, 8|unix.NLA_F_NESTED, nfnl.AppendAttribute(nil, 1, []byte("in\x00")))
	if got := nfnl.Text(nfnl.Find(nfnl.Find(b, 8), 1)); got != "in" {
		t.Errorf("the attribute inside is %q", got)
	}
	if got := nfnl.Find(b, 7); string(got) != "odd" {
		t.Errorf("the first attribute is %q", got)
	}
	if nfnl.Find(b, 9) != nil {
		t.Error("an attribute was found that is not there")
	}
}

func FuzzAttributes(f *testing.F) {
	f.Add(nfnl.AppendAttribute(nil, 1, []byte("x")))
	f.Add([]byte{3, 0, 1, 0})
	f.Add([]byte{255, 255, 1, 0, 9})
	f.Fuzz(func(t *testing.T, b []byte) {
		seen := 0
		for _, data := range nfnl.Attributes(b) {
			if seen += len(data) + 4; seen > len(b) {
				t.Fatalf("%d bytes of attributes in %d", seen, len(b))
			}
		}
	})
}
