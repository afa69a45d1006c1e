// Volumetool works with volumes on a machine of package storage: the driver (csi/driver) as a
// kubelet calls it, with states and keys in files, in one process for each verb, so that each finds
// what the one before left. It prints one answer.Answer and ends with status 0 when the answer says
// what came of it, refusals included; with status 1 when it could not even begin.
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
