package wgdevice

import (
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/pkg/wgkey"
)

func TestDeviceWithoutPrivateKeyHasNoPublicKey(t *testing.T) {
	unset := &wgtypes.Device{PublicKey: wgtypes.Key{}.PublicKey()}
	if got := publicKey(unset); got != (wgkey.Public{}) {
		t.Errorf("without a private key: %s", got)
	}

	private, err := wgtypes.GeneratePrivateKey()
	errtest.Must(t, err)
	set := &wgtypes.Device{PrivateKey: private, PublicKey: private.PublicKey()}
	if got := publicKey(set); got != wgkey.Public(private.PublicKey()) {
		t.Errorf("with one: %s, want %s", got, private.PublicKey())
	}
}
