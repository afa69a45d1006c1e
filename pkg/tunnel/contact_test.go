package tunnel_test

import (
	"testing"
	"time"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/tunnel"
	"github.com/kubeveil/kubeveil/pkg/tunnel/tunneltest"
)

// Contact with a peer is judged only by its counters, with the clock of the test.
func TestContactIsJudgedByCounters(t *testing.T) {
	type look struct {
		after          time.Duration // since the look before
		sent, received int64         // since the look before
		handshake      bool
		want           tunnel.Contact
	}

	const poll = tunnel.WatchEvery
	for _, tc := range []struct {
		name  string
		looks []look
	}{
		{"nothing was ever sent", []look{{0, 0, 0, false, tunnel.ContactIdle},
			{time.Hour, 0, 0, false, tunnel.ContactIdle}}},
		{"what was sent before the first look", []look{{0, 9000, 0, false, tunnel.ContactIdle},
			{time.Minute, 0, 0, false, tunnel.ContactIdle}}},
		{"a handshake before the first look", []look{{0, 148, 92, true, tunnel.ContactUp},
			{tunnel.SessionLifetime, 0, 0, false, tunnel.ContactIdle}}},
		{"answered", []look{
			{0, 0, 0, false, tunnel.ContactIdle}, {poll, 148, 0, false, tunnel.ContactIdle},
			{poll, 1500, 92, true, tunnel.ContactUp},
			{time.Minute, 0, 0, false, tunnel.ContactUp},
			{2 * time.Minute, 0, 0, false, tunnel.ContactIdle},
		}},
		{"only received, answered by keepalives", []look{
			{0, 0, 0, false, tunnel.ContactIdle}, {poll, 92, 1500, true, tunnel.ContactUp},
			{poll, 0, 1500, false, tunnel.ContactUp},
			{poll, 32, 0, false, tunnel.ContactUp}, {time.Minute, 0, 0, false, tunnel.ContactUp},
		}},
		{"a keepalive to a peer without one", []look{
			{0, 0, 0, false, tunnel.ContactIdle}, {25 * time.Second, 32, 0, false,
				tunnel.ContactIdle}, {25 * time.Second, 32, 0, false, tunnel.ContactIdle},
		}},
		{"a handshake that nobody answers", []look{
			{0, 0, 0, false, tunnel.ContactIdle}, {poll, 148, 0, false, tunnel.ContactIdle},
			{poll, 148, 0, false, tunnel.ContactIdle},
			{poll, 148, 0, false, tunnel.ContactIdle}, {poll, 148, 0, false, tunnel.ContactSilent},
			{time.Hour, 0, 0, false, tunnel.ContactSilent},
			{poll, 0, 92, true, tunnel.ContactUp},
		}},
		{"a peer that goes away under traffic", []look{
			{0, 9000, 9000, true, tunnel.ContactUp}, {poll, 9000, 9000, false, tunnel.ContactUp},
			{poll, 9000, 0, false, tunnel.ContactUp},
			{tunnel.SilentAfter - time.Second, 9000, 0, false, tunnel.ContactUp},
			{time.Second, 9000, 0, false, tunnel.ContactSilent},
		}},
		{"the device is made again", []look{
			{0, 9000, 9000, true, tunnel.ContactUp}, {poll, 9000, 0, false, tunnel.ContactUp},
			{time.Hour, 9000, 0, false, tunnel.ContactSilent},
			{poll, -27000, -9000, false, tunnel.ContactIdle},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := time.Unix(1_700_000_000, 0)
			p := tunnel.PeerState{Name: "node-2", PublicKey: pub(1)}
			fake := &tunneltest.Fake{}
			errtest.Must(t, fake.Create(t.Context(), tunnel.Device{Name: "veil0"}))

			m := tunnel.NewManager(fake, func() time.Time { return now })
			for i, l := range tc.looks {
				now = now.Add(l.after)
				p.Sent, p.Received = p.Sent+l.sent, p.Received+l.received
				if l.handshake {
					p.LastHandshake = now
				}
				if l.sent < 0 {
					p.LastHandshake = time.Time{}
				}
				fake.Edit("veil0", func(d *tunnel.DeviceState) { d.Peers = []tunnel.PeerState{p} })
				st, err := m.Status(t.Context())
				errtest.Must(t, err)
				if got := st.Devices[0].Peers[0]; got.Contact != l.want {
					t.Errorf("look %d: %s, want %s (heard %s, unanswered %s)", i, got.Contact,
						l.want, got.Heard, got.Unanswered)
				}
				if names := m.SilentFor(tunnel.SilentAfter); len(names) > 0 !=
					(l.want == tunnel.ContactSilent) {
					t.Errorf("look %d: silent are %q, want the peer only if %s", i, names,
						tunnel.ContactSilent)
				}
			}
		})
	}
}
