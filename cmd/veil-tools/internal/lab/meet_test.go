package lab

import (
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
)

func TestMeet(t *testing.T) {
	l := loopback(t)
	go echoConnections(l)

	addr := l.Addr().String()
	out, err := meet(t.Context(), []string{"--timeout", "5s", "tcp/" + addr, "tcp/" + addr})
	errtest.Must(t, err)
	if r := out.([]metResult); len(r) != 2 || r[0].Tries != 1 || r[1].Error != "" {
		t.Errorf("met: %+v", r)
	}

	l.Close()
	for _, wrong := range []string{"tcp/" + addr, addr, "sctp/" + addr} {
		out, err := meet(t.Context(), []string{"--timeout", "300ms", wrong})
		if err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: the error %v does not contain the name", wrong, err)
		}
		if r := out.([]metResult); r[0].Error == "" {
			t.Errorf("%s: no error in %+v", wrong, r)
		}
	}
}
