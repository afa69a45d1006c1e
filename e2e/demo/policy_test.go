package demo

import (
	"errors"
	"strings"
	"testing"
)

// A row is good only if the forbidden pod's packets were dropped and the allowed pod's packets
// arrived.
func TestVerdictOfAPolicy(t *testing.T) {
	good := verdict{allowed: 200, dropped: 22, answered: 80}
	for name, tt := range map[string]struct {
		change func(*verdict)
		ok     bool
		got    string
	}{
		"as it should be": {func(*verdict) {}, true,
			"0 packets arrived, policy_ingress +22; 80 messages of the third pod answered"},
		"one packet arrives":       {func(v *verdict) { v.forbidden = 1 }, false, "1 packets arrived"},
		"a connection comes about": {func(v *verdict) { v.connected = 1 }, false, "1 connections"},
		"nothing was dropped":      {func(v *verdict) { v.dropped = 0 }, false, "policy_ingress +0"},
		"the allowed pod gets no answer": {func(v *verdict) { v.err = errors.New("timed out") }, false,
			"timed out"},
		"the allowed pod sent nothing": {func(v *verdict) { v.answered = 0 }, false, "0 messages"},
		"the link was not seen":        {func(v *verdict) { v.allowed = 0 }, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := good
			tt.change(&v)
			r := v.refusal("an attempt")
			if r.OK != tt.ok || !strings.Contains(r.Got, tt.got) {
				t.Errorf("%t, %q; want %t, %q", r.OK, r.Got, tt.ok, tt.got)
			}
		})
	}
}
