package main

import (
	"os"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestVerbs(t *testing.T) {
	for name, tt := range map[string]struct{ line, wantErr string }{
		"no verb":             {"", "no verb"},
		"unknown":             {"mount a b", "unknown verb"},
		"too few words":       {"provision a", "unknown verb"},
		"no number":           {"provision a b", "invalid syntax"},
		"a volume":            {"provision pvc-1 16777216", ""},
		"no such volume":      {"unstage pvc-9", ""},
		"reference of what":   {"reference old /dev/null /tmp", "want `device DEVICE`"},
		"a reference nowhere": {"reference new /dev/null", "want `device DEVICE`"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := newNode(settings{dir: t.TempDir(), tuning: string(dmcrypt.Latency)})
			errtest.Must(t, err)
			_, err = n.do(t.Context(), strings.Fields(tt.line))
			if (err == nil) != (tt.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%v, want %q", err, tt.wantErr)
			}
		})
	}
}

// The newest key wraps data keys, and all keys unwrap them. A flag selects a single key.
func TestKeys(t *testing.T) {
	s := settings{dir: t.TempDir(), tuning: string(dmcrypt.Throughput)}
	n, err := newNode(s)
	errtest.Must(t, err)
	first, err := n.keys.KeyID(t.Context())
	errtest.Must(t, err)
	errtest.Must(t, keyring.CreateFile(n.keyPath(2)))

	errtest.Must(t, n.readKeys())
	if id, err := n.keys.KeyID(t.Context()); id == first || err != nil || len(n.keys) != 2 {
		t.Errorf("%d keys, the newest is %s, %v; the first was %s", len(n.keys), id, err, first)
	}

	s.key = 1
	if n, err = newNode(s); err != nil || len(n.keys) != 1 {
		t.Fatalf("only the first key: %v", err)
	}
	if id, err := n.keys.KeyID(t.Context()); id != first || err != nil {
		t.Errorf("the id of the first key is %s, %v, want %s", id, err, first)
	}

	s.key = 3
	if _, err := newNode(s); err == nil {
		t.Error("a key that does not exist was accepted")
	}
}
