"""A made-up shop: three levels of categories and titles in the manner of a marketplace, all written for this project.

The demo's shoppers browse it, and a replay of real data dresses numeric ids in it (`dress_item`), so that a model which
reads titles has titles to read. Nothing here comes from anybody's data.
"""

from collections.abc import Mapping

from intentloop.ids import bucket

TREE: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "户外": {
        "露营": ("帐篷", "睡袋", "天幕"),
        "登山": ("登山杖", "冲锋衣", "登山包"),
        "钓鱼": ("鱼竿", "鱼线", "鱼饵"),
        "骑行": ("头盔", "骑行服", "车灯"),
    },
    "数码": {
        "手机": ("手机壳", "充电宝", "数据线"),
        "电脑": ("键盘", "鼠标", "显示器"),
        "影音": ("耳机", "音箱", "投影仪"),
        "摄影": ("相机", "镜头", "三脚架"),
    },
    "服饰": {
        "女装": ("连衣裙", "针织衫", "半身裙"),
        "男装": ("衬衫", "牛仔裤", "夹克"),
        "鞋靴": ("运动鞋", "短靴", "凉鞋"),
        "箱包": ("双肩包", "拉杆箱", "手提包"),
    },
    "美妆": {
        "护肤": ("面霜", "精华液", "防晒霜"),
        "彩妆": ("口红", "眼影", "粉底液"),
        "香氛": ("香水", "香薰", "香膏"),
        "美发": ("洗发水", "护发素", "发膜"),
    },
    "家居": {
        "床品": ("四件套", "枕头", "被子"),
        "收纳": ("收纳箱", "衣架", "置物架"),
        "灯具": ("台灯", "吊灯", "夜灯"),
        "厨具": ("炒锅", "菜刀", "砧板"),
    },
    "母婴": {
        "喂养": ("奶粉", "奶瓶", "辅食机"),
        "洗护": ("纸尿裤", "湿巾", "浴盆"),
        "玩具": ("积木", "拼图", "玩偶"),
        "出行": ("婴儿车", "腰凳", "安全座椅"),
    },
    "食品": {
        "零食": ("坚果", "薯片", "巧克力"),
        "饮料": ("咖啡", "果汁", "气泡水"),
        "生鲜": ("牛排", "三文鱼", "车厘子"),
        "粮油": ("大米", "橄榄油", "面粉"),
    },
    "家电": {
        "清洁": ("扫地机", "吸尘器", "洗地机"),
        "厨电": ("电饭煲", "空气炸锅", "烤箱"),
        "空调": ("遥控器", "挂机", "风扇"),
        "个护": ("电动牙刷", "剃须刀", "筋膜枪"),
    },
}

BRANDS = ("山雀", "青禾", "北屿", "云杉", "鹿野", "木白", "星洄", "橙岸", "石竹", "南湾", "拾光", "晨也")
EPITHETS = ("新款", "便携", "家用", "官方正品", "加厚", "轻奢", "经典款", "学生", "升级版", "大容量")
PRICES_YUAN = (9.9, 19.9, 39.0, 59.0, 89.0, 129.0, 199.0, 259.0, 399.0, 599.0, 899.0, 1299.0, 2599.0)

LEAVES: tuple[tuple[str, str, str], ...] = tuple(
    (top, middle, leaf) for top, middles in TREE.items() for middle, leaves in middles.items() for leaf in leaves
)


def path(top: str, middle: str, leaf: str) -> str:
    """Which dotted category path is this?"""
    return f"{top}.{middle}.{leaf}"


def dress_item(item_id: str, category_id: str) -> tuple[str, str, float]:
    """Which title, category path and price (yuan) does a bare numeric item get? The same for ever, evenly spread.

    Items of one numeric category share a leaf, so that "same category" keeps its meaning.
    """
    top, middle, leaf = LEAVES[int(bucket(category_id, "category") * len(LEAVES))]
    brand = BRANDS[int(bucket(item_id, "brand") * len(BRANDS))]
    epithet = EPITHETS[int(bucket(item_id, "epithet") * len(EPITHETS))]
    price = PRICES_YUAN[int(bucket(item_id, "price") * len(PRICES_YUAN))]
    return f"{brand}{epithet}{leaf}", path(top, middle, leaf), price
