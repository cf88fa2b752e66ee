from . import _core
def attention(q,k,v,*,mask=None,bias=None,scale=None,softcap=None,alibi=None,sinks=None,dropout_p=0.0,seed=None,layout="bhld",return_lse=False,return_weights=False,threads=None,out=None):
    return _core.attention(q,k,v,out,None,None,None,bias,alibi,sinks,scale,softcap or 0.0,dropout_p,seed or 0,layout,return_lse,return_weights,threads or 0)
dropout_mask=merge_attention=None
