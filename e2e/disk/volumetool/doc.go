// Volumetool works with volumes on a machine of package storage. It calls the driver (csi/driver)
// like a kubelet, with states and keys in files. Each verb runs in a process of its own, so that it
// finds what the verb before left. It prints one answer.Answer. Exit status 0 means that the answer
// holds the result, refusals included; 1 means that it could not begin.
//
//	volumetool [flags] provision NAME BYTES   make a volume
//	volumetool [flags] stage NAME [FOLDER]    open it and mount its file system at FOLDER; without one it is a device
//	volumetool [flags] unstage NAME [FOLDER]
//	volumetool [flags] delete NAME
//	volumetool [flags] rewrap NAME TIMES PAUSE  make a new key-encryption key and wrap the volume's key by it, that often
//	volumetool place FILE                     where the file's content is on its device
//	volumetool [flags] reference device DEVICE           the same device by stock cryptsetup
//	volumetool [flags] reference new|existing DEVICE FOLDER  what it, mkfs.ext4 and mount take for what stage does
//
// Start reading at node.do.
package main
